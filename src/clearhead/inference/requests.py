"""The state of each text that is being generated: its sampling, its draft length, and when it ends."""

import secrets
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Literal, get_args

import torch
from torch import Tensor

from clearhead.config import SamplingConfig
from clearhead.inference.sampling import DRAWN_AHEAD, draw, narrow, row_seeds, sample

# What a random number is for: a token, accepting a draft token, and the token in place of a rejected one.
Purpose = Literal["token", "belief", "instead"]
PURPOSES = get_args(Purpose)
FIRST_REACH, LONGEST_REACH = 4, 16  # draft lengths


class Text:
    """One text that is being generated."""

    def __init__(
        self, name: int, prompt: Sequence[int], config: SamplingConfig, *, seed: int, end: int | None = None
    ) -> None:
        """
        Args:
            name: the key of its tokens in what `GenerationBatch.step` returns.
            prompt: the ids it begins with.
            config: the sampling.
            seed: of its random numbers.
            end: eos; not part of the text.
        """
        self.name, self.prompt, self.config, self.end = name, prompt, config, end
        self.last = prompt[-1]  # of its tokens
        self.present = set(prompt) if config.repetition_penalty != 1 else set[int]()
        self.remaining = config.max_new_tokens
        self.reach = FIRST_REACH  # the draft length
        self._seed, self._drawn = seed, 0
        self._generators = dict[Purpose, torch.Generator]()
        self._uniforms = dict[Purpose, list[float]]()

    def uniforms(self, start: int, count: int, purpose: Purpose = "token") -> list[float]:
        """`count` random numbers for one purpose, beginning `start` tokens after the last one."""
        start += self._drawn
        if purpose not in self._generators:
            self._generators[purpose] = torch.Generator().manual_seed(self._seed ^ PURPOSES.index(purpose))
            self._uniforms[purpose] = []
        numbers = self._uniforms[purpose]
        while len(numbers) < start + count:
            numbers += torch.rand(DRAWN_AHEAD, generator=self._generators[purpose]).tolist()
        return numbers[start : start + count]

    def write(self, tokens: Sequence[int]) -> list[int]:
        """Append tokens; return those before eos or the length limit. At either, `remaining` becomes 0."""
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
        """Double the draft length if all tokens of a full draft were accepted; after a rejection, take accepted + 1."""
        if right < guessed:
            self.reach = right + 1
        elif guessed == self.reach:
            self.reach = min(2 * self.reach, LONGEST_REACH)


def begin(first: int, prompts: Sequence[Sequence[int]], config: SamplingConfig, end: int | None = None) -> list[Text]:
    """One new text per prompt, named `first`, `first` + 1, ..."""
    seed = secrets.randbits(63) if config.seed is None else config.seed
    seeds = row_seeds(seed, prompts)
    pairs = enumerate(zip(prompts, seeds, strict=True), start=first)
    return [Text(name, prompt, config, seed=own, end=end) for name, (prompt, own) in pairs]


def present_in(texts: Sequence[Text], vocab_size: int) -> Tensor:
    """Whether each token is in each text, (B, V), 1 or 0; all 0 for a text without a repetition penalty."""
    present = torch.zeros(len(texts), vocab_size, dtype=torch.uint8, device="cpu")
    for row, text in enumerate(texts):
        present[row, list(text.present)] = 1
    return present


Compute = Callable[[Sequence[Text], Tensor, Tensor], Tensor]  # texts of one config, logits, draft tokens


def draw_ahead(texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> Tensor:
    """Sample a token at each of the last T positions, assuming the draft tokens are right: (B, T).

    Each position has its own random number, so that a text does not depend on its drafts.

    Args:
        texts: B texts.
        logits: (B, T, V), the last ones for the token after all draft tokens.
        guesses: (B, G) draft tokens of each text; G >= T - 1.
    """
    return _by_config(_drawn, texts, logits, guesses)


def odds_ahead(texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> Tensor:
    """The probabilities (B, T, V) that `draw_ahead` samples from."""
    return _by_config(_odds, texts, logits, guesses)


def draw_from(texts: Sequence[Text], odds: Tensor, ahead: Sequence[int], purposes: Sequence[Purpose]) -> Tensor:
    """Sample a token (B,) for each text, `ahead` tokens after its last, from weights (B, V) that need not sum to 1."""
    numbers = [text.uniforms(offset, 1, why) for text, offset, why in zip(texts, ahead, purposes, strict=True)]
    return draw(odds.log(), torch.tensor(numbers, device=odds.device).flatten())


def _by_config(compute: Compute, texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> Tensor:
    """Apply `compute` once per sampling config; usually there is one."""
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
    """The random numbers (B * T,) of the T positions before `end`."""
    T = logits.shape[1]
    numbers = [text.uniforms(end - T, T) for text in texts]
    return torch.tensor(numbers, device=logits.device).flatten()  # (B, T) -> (B * T,)


def _present(texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> Tensor | None:
    """Whether each token occurs before each position if the drafts are right, (B * T, V); None without a penalty."""
    if texts[0].config.repetition_penalty == 1:
        return None
    (B, T, V), G = logits.shape, guesses.shape[1]
    present = torch.zeros(B, G + 1, V, dtype=torch.int32, device=guesses.device)
    present[:, 0] = present_in(texts, V).to(guesses.device)
    present[:, 1:].scatter_(2, guesses[:, :, None], 1)
    return (present.cumsum(1) > 0)[:, G + 1 - T :].flatten(0, 1)  # (B, T, V) -> (B * T, V)
