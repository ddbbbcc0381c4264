"""What is known of each text that is being written: how its tokens are guessed and drawn, and when it ends."""

import secrets
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Literal, get_args

import torch
from torch import Tensor

from clearhead.config import SamplingConfig
from clearhead.inference.sampling import DRAWN_AHEAD, draw, narrow, row_seeds, sample

# What a random number is for: a token, whether a guess at it is believed, and the token where it is not.
Purpose = Literal["token", "belief", "instead"]
PURPOSES = get_args(Purpose)
FIRST_REACH, LONGEST_REACH = 4, 16  # tokens guessed at once


class Text:
    """One row's tokens to come."""

    def __init__(
        self, name: int, prompt: Sequence[int], config: SamplingConfig, *, seed: int, end: int | None = None
    ) -> None:
        """
        Args:
            name: what its tokens are told under.
            prompt: what it begins with.
            config: how its tokens are drawn.
            seed: of its random numbers.
            end: the token that ends it and is no part of it.
        """
        self.name, self.prompt, self.config, self.end = name, prompt, config, end
        self.last = prompt[-1]  # of its tokens
        self.present = set(prompt) if config.repetition_penalty != 1 else set[int]()
        self.remaining = config.max_new_tokens
        self.reach = FIRST_REACH  # how many tokens are guessed at once
        self._seed, self._drawn = seed, 0
        self._generators = dict[Purpose, torch.Generator]()
        self._uniforms = dict[Purpose, list[float]]()

    def uniforms(self, start: int, count: int, purpose: Purpose = "token") -> list[float]:
        """The random numbers of this many tokens, from the `start`-th that is still to come, for one purpose."""
        start += self._drawn
        if purpose not in self._generators:
            self._generators[purpose] = torch.Generator().manual_seed(self._seed ^ PURPOSES.index(purpose))
            self._uniforms[purpose] = []
        numbers = self._uniforms[purpose]
        while len(numbers) < start + count:
            numbers += torch.rand(DRAWN_AHEAD, generator=self._generators[purpose]).tolist()
        return numbers[start : start + count]

    def write(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that come next; what belongs to the text is returned, and where it ends nothing remains."""
        self._drawn += len(tokens)
        self.last = tokens[-1]
        if self.config.repetition_penalty != 1:
            self.present.update(tokens)
        written = list(tokens[: self.remaining])
        self.remaining -= len(written)
        if self.end in written:
            written, self.remaining = written[: written.index(self.end)], 0
        return written

    def learn(self, guessed: int, right: int) -> None:
        """Reach further where all guesses were right; where not, as far as they were."""
        if right < guessed:
            self.reach = right + 1
        elif guessed == self.reach:
            self.reach = min(2 * self.reach, LONGEST_REACH)


def begin(first: int, prompts: Sequence[Sequence[int]], config: SamplingConfig, end: int | None = None) -> list[Text]:
    """Texts that follow the prompts, named from `first` on."""
    seed = secrets.randbits(63) if config.seed is None else config.seed
    seeds = row_seeds(seed, prompts)
    pairs = enumerate(zip(prompts, seeds, strict=True), start=first)
    return [Text(name, prompt, config, seed=own, end=end) for name, (prompt, own) in pairs]


def present_in(texts: Sequence[Text], vocab_size: int) -> Tensor:
    """Whether each token is in each text, as far as that matters to it: (B, V), 1 or 0."""
    present = torch.zeros(len(texts), vocab_size, dtype=torch.uint8, device="cpu")
    for row, text in enumerate(texts):
        present[row, list(text.present)] = 1
    return present


Compute = Callable[[Sequence[Text], Tensor, Tensor], Tensor]  # texts that are drawn alike, their logits and guesses


def draw_ahead(texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> Tensor:
    """The tokens (B, T) that follow where the last T - 1 or more of the `guesses` are right.

    Each is drawn with the random number of its place, so that a text does not depend on what was guessed.

    Args:
        texts: B of them.
        logits: (B, T, V), the last of them those of the token after all guesses.
        guesses: (B, G), the next tokens of each text; G >= T - 1.
    """
    return _by_config(_drawn, texts, logits, guesses)


def odds_ahead(texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> Tensor:
    """The probabilities (B, T, V) that `draw_ahead` draws with."""
    return _by_config(_odds, texts, logits, guesses)


def draw_from(texts: Sequence[Text], odds: Tensor, ahead: Sequence[int], purposes: Sequence[Purpose]) -> Tensor:
    """A token (B,) of each text, `ahead` of it, from probabilities (B, V) that need not have the sum 1."""
    numbers = [text.uniforms(offset, 1, why) for text, offset, why in zip(texts, ahead, purposes, strict=True)]
    return draw(odds.log(), torch.tensor(numbers, device=odds.device).flatten())


def _by_config(compute: Compute, texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> Tensor:
    """What is computed of all texts, of which some may be drawn in another way than others; mostly none is."""
    groups: dict[int, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(id(text.config), []).append(row)
    if len(groups) == 1:
        return compute(texts, logits, guesses)
    parts = [compute([texts[row] for row in some], logits[some], guesses[some]) for some in groups.values()]
    order = torch.tensor(list(chain(*groups.values())), device=logits.device)
    return torch.cat(parts)[order.argsort()]


def _drawn(texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> Tensor:
    config, present = texts[0].config, _present(texts, logits, guesses)
    uniforms = None if config.greedy else _uniforms(texts, guesses.shape[1] + 1, logits)
    drawn = sample(logits.flatten(0, 1), config, uniforms, present)  # (B, T, V) -> (B * T, V) -> (B * T,)
    return drawn.view(logits.shape[:2])


def _odds(texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> Tensor:
    rows = logits.flatten(0, 1)  # (B, T, V) -> (B * T, V)
    odds = narrow(rows, texts[0].config, _present(texts, logits, guesses)).softmax(-1)  # at least float32
    return odds.view(logits.shape)


def _uniforms(texts: Sequence[Text], end: int, logits: Tensor) -> Tensor:
    """The random numbers (B * T,) of the T places before `end`."""
    T = logits.shape[1]
    numbers = [text.uniforms(end - T, T) for text in texts]
    return torch.tensor(numbers, device=logits.device).flatten()  # (B, T) -> (B * T,)


def _present(texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> Tensor | None:
    """Whether each token is in the text before each place, (B * T, V), the guesses being right; if it matters."""
    if texts[0].config.repetition_penalty == 1:
        return None
    (B, T, V), G = logits.shape, guesses.shape[1]
    present = torch.zeros(B, G + 1, V, dtype=torch.int32, device=guesses.device)
    present[:, 0] = present_in(texts, V).to(guesses.device)
    present[:, 1:].scatter_(2, guesses[:, :, None], 1)
    return (present.cumsum(1) > 0)[:, G + 1 - T :].flatten(0, 1)  # (B, T, V) -> (B * T, V)
