"""Beam search: the likeliest translations that following a few hypotheses at once can find."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.config import TranslationConfig
from clearhead.inference.beam_backend import BeamBackend, EagerBeamBackend
from clearhead.inference.ids import known_ids
from clearhead.models import EncoderDecoder
from clearhead.models.eval_mode import evaluating
from clearhead.parts import positions_from_lengths

MAX_LIVE_SHARE = 7 / 8  # finished sentences stay in the batch while more than this share is open
ROOM = 64  # initial columns of the cache; most sentences end long before their greatest length


class Hypothesis(NamedTuple):
    """A translation: its ids without the ends, and its log-probability in nats over its length penalty."""

    ids: list[int]
    score: float


class BeamStep(NamedTuple):
    """What one step of a search looked at, for the S sentences that were open or not dropped yet.

    Attributes:
        sources: (S,) the number of each sentence.
        scores, parents, tokens: (S, n) the likeliest continuations, the best first: log-probability of the whole
            hypothesis, index among the hypotheses that the step before kept, and token.
        finished: (S, k) which of the first k were taken in as finished.
        kept: (S, b) the indices of those that live on, the best first.
    """

    sources: NDArray[np.int64]
    scores: NDArray[np.floating]
    parents: NDArray[np.int64]
    tokens: NDArray[np.int64]
    finished: NDArray[np.bool_]
    kept: NDArray[np.int64]


@torch.inference_mode()
def beam_search(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    config: TranslationConfig,
    *,
    end: int,
    backend: BeamBackend | None = None,
    on_step: Callable[[BeamStep], None] | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` translations of each source, the best first; fewer where no more are possible.

    Each step ranks the 2k likeliest continuations of a sentence's k hypotheses: endings in the top k are finished; the
    best k continuations that do not end survive. A sentence is done when k of its hypotheses are finished, when no
    other could be among the best any more, or at its greatest length; what is missing from `n_best` then is made up of
    hypotheses that were cut off, after the finished ones. A beam of 1 is greedy decoding.

    Args:
        model: in any mode; it translates without dropout and is left as it was.
        sources: ids of each sentence, its end token included; all are one batch, whatever `batch_size` says.
        config: how to search.
        end: the token that ends a translation, and begins it unless the model's config has another one for that.
        backend: the backend; eager by default.
        on_step: called after each step with what it did; it must not change it.

    Raises:
        UsageError: a source is empty, or has an id that is not in the model's vocabulary, or the end is not.
        ClearheadError: the model's output is not finite.
    """
    if not sources:
        return []
    sources = known_sources(model, sources, end)
    with evaluating(model):
        search = _Search(model, sources, config, end, backend or EagerBeamBackend(model))
        while search.sentences.is_open.any():
            numbers, ranking = search.sentences.source_indices, search.expand()
            finished = search.finish(ranking)
            kept = search.advance(ranking)
            if on_step is not None:
                on_step(BeamStep(numbers, *ranking, finished, kept))
    return search.results()


def known_sources(model: EncoderDecoder, sources: Sequence[Sequence[int]], end: int) -> list[list[int]]:
    """The sources as lists of ids that are in the model's vocabulary.

    Raises:
        UsageError: a source is empty, or an id of it or `end` is not in the vocabulary.
    """
    config = model.config
    known_ids([[end, config.first_token(end)]], config.vocab_size)
    return known_ids(sources, config.source_vocab_size or config.vocab_size)


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha, the end token counted (Wu et al. 2016, arXiv 1609.08144, equation 14)."""
    return float(((5 + length) / 6) ** alpha)


def max_length(model: EncoderDecoder, config: TranslationConfig, source_length: int) -> int:
    """Tokens that a translation may have, its end included: max_new_tokens, or twice the source and ten.

    Where positions end with the block, so does the translation.
    """
    limit = config.max_new_tokens or 2 * source_length + 10
    return min(limit, model.config.block_size) if model.positions.bounded else limit


class _Ranking(NamedTuple):
    """The likeliest continuations of each sentence, (S, n) each, as in `Continuations`."""

    scores: NDArray[np.floating]
    parents: NDArray[np.int64]
    tokens: NDArray[np.int64]


@dataclass
class _Sentences:
    """The state of the S sentences in the batch and of the b hypotheses of each, the best first."""

    source_indices: NDArray[np.int64]  # (S,) indices of the sources
    max_lengths: NDArray[np.int64]  # (S,) the greatest length of each
    penalties: NDArray[np.float64]  # (S,) at the greatest lengths
    worst_finished: NDArray[np.float64]  # (S,) the score of the last of n_best finished ones
    is_open: NDArray[np.bool_]  # (S,) whether it is not done
    scores: NDArray[np.floating]  # (S, b) log-probabilities
    written: NDArray[np.int64]  # (S, b, T)
    ancestry: NDArray[np.bool_]  # (S, b, columns) each hypothesis's ancestry: its columns of the cache

    def select(self, rows: NDArray[np.int64]) -> Self:
        """These sentences, in this order."""
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))


class _Search:
    """A batch of S sentences and the b hypotheses of each: one at first, then k.

    A sentence is one row of the cache, which holds the tokens of all its hypotheses, dead ones included; `ancestry`
    says which of them are a hypothesis's own. So no step reorders the cache, and the source's keys and values are
    stored once. The state is NumPy's: it is small, and an operation of torch on a few numbers takes five times as long.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        sources: Sequence[Sequence[int]],
        config: TranslationConfig,
        end: int,
        backend: BeamBackend,
    ) -> None:
        self.config, self.end, self.backend = config, end, backend
        self.finished, self.cut_off = ([list[Hypothesis]() for _ in sources] for _ in range(2))
        lengths = [len(source) for source in sources]
        max_lengths = [max_length(model, config, length) for length in lengths]
        self.device, width, fill = model.device, max(lengths), model.config.pad_id or 0
        ids = torch.tensor([[*source, *[fill] * (width - len(source))] for source in sources], device=self.device)
        positions = positions_from_lengths(torch.tensor(lengths, device=self.device), width)
        self.memory, self.cache = backend.begin(ids, positions if min(lengths) < width else range(width), ROOM)
        S, start = len(sources), model.config.first_token(end)
        self.sentences = _Sentences(
            source_indices=np.arange(S),
            max_lengths=np.array(max_lengths),
            penalties=np.array([length_penalty(limit, config.length_penalty) for limit in max_lengths]),
            worst_finished=np.full(S, -np.inf),
            is_open=np.ones(S, bool),
            scores=np.zeros((S, 1), np.float32),
            written=np.full((S, 1, 1), start),
            ancestry=np.ones((S, 1, 0), bool),
        )

    def expand(self) -> _Ranking:
        """The 2k likeliest continuations of each sentence."""
        now, columns = self.sentences, self.cache.length
        S, b, length = now.written.shape
        now.ancestry = np.concatenate((now.ancestry, np.eye(b, dtype=bool)[None].repeat(S, axis=0)), axis=2)
        if columns + b > self.cache.capacity:
            self.cache.resize(2 * (columns + b))
        tokens, scores, ancestry = map(self._tensor, (now.written[:, :, -1], now.scores, now.ancestry))
        logits = self.backend.forward(tokens, length - 1, self.memory, self.cache, ancestry)  # (S, b, V)
        n = min(2 * self.config.beam_size, logits[0].numel())
        return _Ranking(*(part.numpy(force=True) for part in self.backend.top_continuations(logits, scores, n)))

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def finish(self, ranking: _Ranking) -> NDArray[np.bool_]:
        """Move hypotheses that end within the top k to `finished`; (S, k) which of them it took."""
        now = self.sentences
        scores, parents, tokens = (part[:, : self.config.beam_size] for part in ranking)
        ends: NDArray[np.bool_] = (tokens == self.end) & np.isfinite(scores) & now.is_open[:, None]
        penalty = length_penalty(now.written.shape[2], self.config.length_penalty)
        for row, column in zip(*ends.nonzero(), strict=True):
            finished = self.finished[now.source_indices[row]]
            if len(finished) < self.config.beam_size:
                ids = now.written[row, parents[row, column], 1:].tolist()
                finished.append(Hypothesis(ids, float(scores[row, column]) / penalty))
            else:
                ends[row, column] = False
            now.is_open[row] = len(finished) < self.config.beam_size
            if len(finished) >= self.config.n_best:
                now.worst_finished[row] = sorted(hypothesis.score for hypothesis in finished)[-self.config.n_best]
        return ends

    def advance(self, ranking: _Ranking) -> NDArray[np.int64]:
        """Continue with the first k hypotheses that do not end; (S, width) their indices."""
        now = self.sentences
        S, b, length = now.written.shape
        ended = ranking.tokens == self.end  # (S, n), at most one for each of the b hypotheses
        width = min(self.config.beam_size, ended.shape[1] - b)
        rows, living = np.arange(S)[:, None], ended.argsort(axis=1, kind="stable")[:, :width]  # others come first
        now.scores, parents, tokens = (part[rows, living] for part in ranking)  # (S, width) each
        now.written = np.concatenate((now.written[rows, parents], tokens[:, :, None]), axis=2)  # (S, width, T + 1)
        now.ancestry = now.ancestry[rows, parents]  # (S, width, columns)
        self._close(length)
        self._drop_finished()
        kept: NDArray[np.int64] = living
        return kept

    def _close(self, length: int) -> None:
        """Mark sentences as done: at the greatest length, where open hypotheses are cut off, or when none can improve.

        A hypothesis only becomes less likely, and the penalty is greatest at the greatest length, so a bound on the
        best open score tells whether one could still be among the n best.
        """
        now, penalty = self.sentences, length_penalty(length, self.config.length_penalty)
        for row in (now.is_open & (now.max_lengths == length)).nonzero()[0]:
            living = zip(now.written[row, :, 1:].tolist(), now.scores[row].tolist(), strict=True)
            self.cut_off[now.source_indices[row]] = [
                Hypothesis(ids, score / penalty) for ids, score in living if score > -math.inf
            ]
        now.is_open &= (now.max_lengths > length) & (now.scores[:, 0] / now.penalties > now.worst_finished)

    def _drop_finished(self) -> None:
        """Drop finished sentences once an eighth are done; dropping copies the cache."""
        rows = self.sentences.is_open.nonzero()[0]
        if not 0 < len(rows) <= MAX_LIVE_SHARE * len(self.sentences.is_open):
            return
        self.sentences = self.sentences.select(rows)
        kept = self._tensor(rows)
        self.cache.reorder(kept)
        self.memory = self.memory.select(kept)

    def results(self) -> list[list[Hypothesis]]:
        """The best of each sentence, cut-off ones last."""
        best = [sorted(done, key=lambda hypothesis: hypothesis.score, reverse=True) for done in self.finished]
        return [(done + rest)[: self.config.n_best] for done, rest in zip(best, self.cut_off, strict=True)]
