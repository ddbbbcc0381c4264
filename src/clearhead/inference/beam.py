"""Beam search: the likeliest translations that following a few hypotheses at once can find."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import torch
from torch import Tensor

from clearhead.config import TranslationConfig
from clearhead.inference.beam_backend import BeamBackend, Continuations, EagerBeamBackend
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


@torch.inference_mode()
def beam_search(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    config: TranslationConfig,
    *,
    end: int,
    backend: BeamBackend | None = None,
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
            continuations = search.expand()
            search.finish(continuations)
            search.advance(continuations)
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


@dataclass
class _Sentences:
    """The state of the S sentences in the batch and of the b hypotheses of each, the best first."""

    source_indices: Tensor  # (S,) indices of the sources
    max_lengths: Tensor  # (S,) the greatest length of each
    penalties: Tensor  # (S,) at the greatest lengths
    worst_finished: Tensor  # (S,) the score of the last of n_best finished ones
    is_open: Tensor  # (S,) whether it is not done
    scores: Tensor  # (S, b) log-probabilities
    written: Tensor  # (S, b, T)
    ancestry: Tensor  # (S, b, columns) each hypothesis's ancestry: its columns of the cache

    def select(self, rows: Tensor) -> Self:
        """These sentences, in this order."""
        return type(self)(*(getattr(self, field.name).index_select(0, rows) for field in fields(self)))


class _Search:
    """A batch of S sentences and the b hypotheses of each: one at first, then k.

    A sentence is one row of the cache, which holds the tokens of all its hypotheses, dead ones included; `ancestry`
    says which of them are a hypothesis's own. So no step reorders the cache, and the source's keys and values are
    stored once.
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
        device, width, fill = model.device, max(lengths), model.config.pad_id or 0
        ids = torch.tensor([[*source, *[fill] * (width - len(source))] for source in sources], device=device)
        ragged = min(lengths) < width
        self.memory = model.encode(  # read once
            ids,
            positions=positions_from_lengths(torch.tensor(lengths, device=device), width) if ragged else range(width),
        )
        self.cache = model.new_cache(len(sources), ROOM)
        penalties_at_max = [length_penalty(limit, config.length_penalty) for limit in max_lengths]
        penalties = torch.tensor(penalties_at_max, dtype=torch.float64, device=device)  # (S,)
        start = model.config.first_token(end)
        self.sentences = _Sentences(
            source_indices=torch.arange(len(sources), device=device),
            max_lengths=torch.tensor(max_lengths, device=device),
            penalties=penalties,
            worst_finished=torch.full_like(penalties, -torch.inf),
            is_open=torch.ones_like(penalties, dtype=torch.bool),
            scores=torch.zeros(len(sources), 1, device=device),
            written=torch.full((len(sources), 1, 1), start, device=device),
            ancestry=torch.ones(len(sources), 1, 0, dtype=torch.bool, device=device),
        )

    def expand(self) -> Continuations:
        """The 2k likeliest continuations of each sentence."""
        now, columns = self.sentences, self.cache.length
        S, b, length = now.written.shape
        itself = torch.eye(b, dtype=torch.bool, device=now.ancestry.device).expand(S, -1, -1)
        now.ancestry = torch.cat((now.ancestry, itself), dim=2)
        if columns + b > self.cache.capacity:
            self.cache.resize(2 * (columns + b))
        logits = self.backend.forward(
            now.written[:, :, -1], length - 1, self.memory, self.cache, now.ancestry
        )  # (S, b, V)
        return self.backend.top_continuations(logits, now.scores, min(2 * self.config.beam_size, logits[0].numel()))

    def finish(self, continuations: Continuations) -> None:
        """Move hypotheses that end within the top k to `finished`."""
        now = self.sentences
        scores, parents, tokens = (part[:, : self.config.beam_size] for part in continuations)
        ends = (tokens == self.end) & scores.isfinite() & now.is_open[:, None]
        penalty = length_penalty(now.written.shape[2], self.config.length_penalty)
        for row, column in ends.nonzero().tolist():
            finished = self.finished[now.source_indices[row]]
            if len(finished) < self.config.beam_size:
                ids = now.written[row, parents[row, column], 1:].tolist()
                finished.append(Hypothesis(ids, scores[row, column].item() / penalty))
            now.is_open[row] = len(finished) < self.config.beam_size
            if len(finished) >= self.config.n_best:
                now.worst_finished[row] = sorted(hypothesis.score for hypothesis in finished)[-self.config.n_best]

    def advance(self, continuations: Continuations) -> None:
        """Continue with the first k hypotheses that do not end."""
        now = self.sentences
        _, b, length = now.written.shape
        ended = continuations.tokens == self.end  # (S, n), at most one for each of the b hypotheses
        width = min(self.config.beam_size, ended.shape[1] - b)
        living = ended.byte().argsort(dim=1, stable=True)[:, :width]  # the others come first, in their order
        now.scores, parents, tokens = (part.gather(1, living) for part in continuations)  # (S, width) each
        before, now.ancestry = (  # (S, width, T), (S, width, columns)
            held.gather(1, parents[:, :, None].expand(-1, -1, held.shape[2])) for held in (now.written, now.ancestry)
        )
        now.written = torch.cat((before, tokens[:, :, None]), dim=2)
        self._close(length)
        self._drop_finished()

    def _close(self, length: int) -> None:
        """Mark sentences as done: at the greatest length, where open hypotheses are cut off, or when none can improve.

        A hypothesis only becomes less likely, and the penalty is greatest at the greatest length, so a bound on the
        best open score tells whether one could still be among the n best.
        """
        now, penalty = self.sentences, length_penalty(length, self.config.length_penalty)
        for row in (now.is_open & (now.max_lengths == length)).nonzero().flatten().tolist():
            living = zip(now.written[row, :, 1:].tolist(), now.scores[row].tolist(), strict=True)
            self.cut_off[now.source_indices[row]] = [
                Hypothesis(ids, score / penalty) for ids, score in living if score > -math.inf
            ]
        now.is_open &= (now.max_lengths > length) & (now.scores[:, 0] / now.penalties > now.worst_finished)

    def _drop_finished(self) -> None:
        """Drop finished sentences once an eighth are done; dropping copies the cache."""
        rows = self.sentences.is_open.nonzero().flatten()
        if not 0 < len(rows) <= MAX_LIVE_SHARE * len(self.sentences.is_open):
            return
        self.cache.reorder(rows)
        self.memory = self.memory.select(rows)
        self.sentences = self.sentences.select(rows)

    def results(self) -> list[list[Hypothesis]]:
        """The best of each sentence, cut-off ones last."""
        best = [sorted(done, key=lambda hypothesis: hypothesis.score, reverse=True) for done in self.finished]
        return [(done + rest)[: self.config.n_best] for done, rest in zip(best, self.cut_off, strict=True)]
