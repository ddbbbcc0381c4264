"""One step of a beam search: the logits after each hypothesis and the likeliest continuations, eagerly or natively."""

import ctypes
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.models import EncoderDecoder, Memory
from clearhead.models.eval_mode import refuse_not_finite
from clearhead.native import NativeTranslator
from clearhead.parts import DecoderCache

CHUNK = 32  # numbers whose greatest is found at once


class Continuations(NamedTuple):
    """The likeliest ways to go on with each sentence, the best first: (S, n) each."""

    scores: Tensor  # log-probability of the whole hypothesis
    parents: Tensor  # which of the sentence's hypotheses goes on
    tokens: Tensor  # with what


class BeamStep(Protocol):
    """Reads the newest tokens of S sentences' hypotheses, b of each, which share a row of the cache."""

    def read(self, tokens: Tensor, position: int, memory: Memory, cache: DecoderCache, among: Tensor) -> Tensor:
        """The logits (S, b, V) after one more token (S, b) of each hypothesis.

        Args:
            position: where the tokens stand.
            memory: of the same sentences.
            cache: from `new_cache`, with room for b columns.
            among: (S, b, columns + b) which columns a hypothesis descends from, its newest one included.
        """

    def likeliest(self, logits: Tensor, before: Tensor, n: int) -> Continuations:
        """The n likeliest continuations of each sentence, of logits (S, b, V) and what hypotheses had (S, b).

        Raises:
            ClearheadError: a logit is not finite.
        """


class EagerBeamStep:
    """By the model's own call."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model = model

    def read(self, tokens: Tensor, position: int, memory: Memory, cache: DecoderCache, among: Tensor) -> Tensor:
        if tokens.shape[1] == 1:  # at the first step, or with a beam of 1: all columns are its own
            return self.model.head(self.model.decode(tokens, memory, cache=cache))
        positions = torch.full_like(tokens, position)
        return self.model.head(self.model.decode(tokens, memory, positions=positions, cache=cache, among=among))

    def likeliest(self, logits: Tensor, before: Tensor, n: int) -> Continuations:
        chances = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        refuse_not_finite(chances.sum(-1))  # the sums, because they are few
        if self.model.config.pad_id is not None:
            chances[..., self.model.config.pad_id] = -torch.inf  # padding is no word
        chances += before[:, :, None]
        V = chances.shape[-1]
        scores, places = greatest(chances.flatten(1), n)  # (S, b, V) -> (S, b * V) -> (S, n)
        return Continuations(scores, places // V, places % V)


class NativeBeamStep:
    """By native code, once an eager call has made keys and values of the memory."""

    def __init__(self, model: EncoderDecoder, library: ctypes.CDLL) -> None:
        """
        Raises:
            UnknownPartError: it has a part that native code does not know.
        """
        self.model = model
        self._native, self._eager = NativeTranslator(model, library), EagerBeamStep(model)

    def read(self, tokens: Tensor, position: int, memory: Memory, cache: DecoderCache, among: Tensor) -> Tensor:
        step = self._eager if cache.length == 0 else self._native
        return step.read(tokens, position, memory, cache, among)

    def likeliest(self, logits: Tensor, before: Tensor, n: int) -> Continuations:
        return Continuations(*self._native.likeliest(logits, before, n))


def greatest(numbers: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n greatest of each row (S, N), in order, and their places: as `topk`, which is slow where N is large.

    They lie in the n chunks with the greatest heads, so only those are sorted.
    """
    S, N = numbers.shape
    if n * CHUNK > N:
        values, places = numbers.topk(n)
        return values, places
    if rest := -N % CHUNK:
        numbers = F.pad(numbers, (0, rest), value=-torch.inf)
    chunks = numbers.view(S, -1, CHUNK)  # (S, N) -> (S, N / C, C)
    best = chunks.amax(-1).topk(n).indices  # (S, n)
    kept = chunks.gather(1, best[:, :, None].expand(-1, -1, CHUNK)).flatten(1)  # (S, n, C) -> (S, n * C)
    values, places = kept.topk(n)
    return values, best.gather(1, places // CHUNK) * CHUNK + places % CHUNK
