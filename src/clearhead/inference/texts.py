"""What is known of each text that is being written: how its tokens are drawn, and when it ends."""

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.config import SamplingConfig
from clearhead.inference.sampling import DRAWN_AHEAD, row_seeds, sample


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
        self.name, self.config, self.end = name, config, end
        self.present = set(prompt) if config.repetition_penalty != 1 else set[int]()
        self.remaining = config.max_new_tokens
        self._generator = torch.Generator().manual_seed(seed)
        self._uniforms = list[float]()
        self._drawn = 0

    def uniforms(self, start: int, count: int) -> list[float]:
        """The random numbers of this many tokens, from the `start`-th that is still to come."""
        start += self._drawn
        while len(self._uniforms) < start + count:
            self._uniforms += torch.rand(DRAWN_AHEAD, generator=self._generator).tolist()
        return self._uniforms[start : start + count]

    def write(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that come next; what belongs to the text is returned, and where it ends nothing remains."""
        self._drawn += len(tokens)
        if self.config.repetition_penalty != 1:
            self.present.update(tokens)
        written = list(tokens[: self.remaining])
        self.remaining -= len(written)
        if self.end in written:
            written, self.remaining = written[: written.index(self.end)], 0
        return written


def begin(first: int, prompts: Sequence[Sequence[int]], config: SamplingConfig, end: int | None = None) -> list[Text]:
    """Texts that follow the prompts, named from `first` on."""
    seed = secrets.randbits(63) if config.seed is None else config.seed
    seeds = row_seeds(seed, prompts)
    pairs = enumerate(zip(prompts, seeds, strict=True), start=first)
    return [Text(name, prompt, config, seed=own, end=end) for name, (prompt, own) in pairs]


def draw_ahead(texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> Tensor:
    """The tokens (B, T) that follow where the last T - 1 or more of the `guesses` are right.

    Each is drawn with the random number of its place, so that a text does not depend on what was guessed.

    Args:
        texts: B of them.
        logits: (B, T, V), the last of them those of the token after all guesses.
        guesses: (B, G), the next tokens of each text; G >= T - 1.
    """
    groups: dict[int, list[int]] = {}
    for place, text in enumerate(texts):
        groups.setdefault(id(text.config), []).append(place)
    if len(groups) == 1:
        return _draw(texts, logits, guesses)
    drawn = guesses.new_empty(logits.shape[:2])
    for places in groups.values():
        index = torch.tensor(places, device=logits.device)
        drawn[index] = _draw([texts[place] for place in places], logits[index], guesses[index])
    return drawn


def _draw(texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> Tensor:
    """The same, of texts with one config."""
    config, (_, T, V) = texts[0].config, logits.shape
    start = guesses.shape[1] + 1 - T
    uniforms = present = None
    if not config.greedy:
        numbers = [text.uniforms(start, T) for text in texts]
        uniforms = torch.tensor(numbers, device=logits.device).flatten()  # (B, T) -> (B * T,)
    if config.repetition_penalty != 1:
        present = _present(texts, guesses, V)[:, start:].flatten(0, 1)  # (B, T, V) -> (B * T, V)
    drawn = sample(logits.flatten(0, 1), config, uniforms, present)  # (B, T, V) -> (B * T, V) -> (B * T,)
    return drawn.view(len(texts), T)


def _present(texts: Sequence[Text], guesses: Tensor, vocab_size: int) -> Tensor:
    """Whether each token is in the text before each place, (B, G + 1, V), the guesses being right."""
    B, G = guesses.shape
    present = torch.zeros(B, G + 1, vocab_size, dtype=torch.int32, device=guesses.device)
    for row, text in enumerate(texts):
        present[row, 0, list(text.present)] = 1
    present[:, 1:].scatter_(2, guesses[:, :, None], 1)
    return present.cumsum(1) > 0
