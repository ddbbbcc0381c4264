"""One beam-search step, eager or native: logits after each hypothesis, and the likeliest continuations."""

import ctypes
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.models import EncoderDecoder, Memory
from clearhead.models.eval_mode import refuse_not_finite
from clearhead.native import NativeTranslator
from clearhead.parts import DecoderCache

CHUNK = 32  # numbers per chunk


class Continuations(NamedTuple):
    """The likeliest continuations of each sentence, the best first: (S, n) each."""

    scores: Tensor  # log-probability of the whole hypothesis
    parents: Tensor  # index of the hypothesis that continues
    tokens: Tensor  # the next token


class BeamStep(Protocol):
    """A backend for S sentences with b hypotheses each, which share a row of the cache."""

    def read(self, tokens: Tensor, position: int, memory: Memory, cache: DecoderCache, among: Tensor) -> Tensor:
        """The logits (S, b, V) after one more token (S, b) of each hypothesis.

        Args:
            position: where the tokens stand.
            memory: of the same sentences.
            cache: from `new_cache`, with room for b columns.
            among: (S, b, columns + b) the ancestry of each hypothesis: its columns, the newest included.
        """

    def likeliest(self, logits: Tensor, before: Tensor, n: int) -> Continuations:
        """The n likeliest continuations of each sentence, from logits (S, b, V) and the hypotheses' scores (S, b).

        Raises:
            ClearheadError: a logit is not finite.
        """


class EagerBeamStep:
    """The eager backend: the model's own call."""

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
            chances[..., self.model.config.pad_id] = -torch.inf  # padding is never generated
        chances += before[:, :, None]
        V = chances.shape[-1]
        scores, places = greatest(chances.flatten(1), n)  # (S, b, V) -> (S, b * V) -> (S, n)
        return Continuations(scores, places // V, places % V)


class NativeBeamStep:
    """The native backend. The first step is eager: it projects the memory's keys and values."""

    def __init__(self, model: EncoderDecoder, library: ctypes.CDLL) -> None:
        """
        Raises:
            UnknownPartError: native code does not implement a part of the model.
        """
        self.model = model
        self._native, self._eager = NativeTranslator(model, library), EagerBeamStep(model)

    def read(self, tokens: Tensor, position: int, memory: Memory, cache: DecoderCache, among: Tensor) -> Tensor:
        step = self._eager if cache.length == 0 else self._native
        return step.read(tokens, position, memory, cache, among)

    def likeliest(self, logits: Tensor, before: Tensor, n: int) -> Continuations:
        return Continuations(*self._native.likeliest(logits, before, n))


def greatest(numbers: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n largest of each row (S, N), in order, and their indices, as `topk`, which is slow for large N.

    The top n lie in the n chunks with the largest maxima.
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
