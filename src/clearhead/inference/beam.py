"""Beam search: the likeliest translations that following a few hypotheses at once can find."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import torch
from torch import Tensor

from clearhead.config import TranslationConfig
from clearhead.inference.beam_step import BeamStep, Continuations, EagerBeamStep
from clearhead.inference.ids import known_ids
from clearhead.models import EncoderDecoder
from clearhead.models.eval_mode import evaluating
from clearhead.parts import positions_from_lengths

STAYING = 7 / 8  # finished sentences stay in the batch while more than this share is open
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
    reader: BeamStep | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` translations of each source, the best first; fewer where no more are possible.

    Each step looks at the 2k likeliest continuations of a sentence's k hypotheses: those among the first k that end
    are finished, the first k of the others live on. A sentence is done when k of its hypotheses are finished, when no
    other could be among the best any more, or at its greatest length; what is missing from `n_best` then is made up of
    hypotheses that were cut off, after the finished ones. A beam of 1 is greedy decoding.

    Args:
        model: in any mode; it translates without dropout and is left as it was.
        sources: ids of each sentence, its end token included; all are one batch, whatever `batch_size` says.
        config: how to search.
        end: the token that ends a translation, and begins it unless the model's config has another one for that.
        reader: the backend; eager by default.

    Raises:
        UsageError: a source is empty, or has an id that is not in the model's vocabulary, or the end is not.
        ClearheadError: the model's output is not finite.
    """
    if not sources:
        return []
    sources = known_sources(model, sources, end)
    with evaluating(model):
        search = _Search(model, sources, config, end, reader or EagerBeamStep(model))
        while search.sentences.is_open.any():
            continuations = search.look_ahead()
            search.finish(continuations)
            search.live_on(continuations)
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


def greatest_length(model: EncoderDecoder, config: TranslationConfig, source_length: int) -> int:
    """Tokens that a translation may have, its end included: max_new_tokens, or twice the source and ten.

    Where positions end with the block, so does the translation.
    """
    limit = config.max_new_tokens or 2 * source_length + 10
    return min(limit, model.config.block_size) if model.positions.bounded else limit


@dataclass
class _Sentences:
    """The state of the S sentences in the batch and of the b hypotheses of each, the best first."""

    places: Tensor  # (S,) indices of the sources
    limits: Tensor  # (S,) the greatest length of each
    penalties: Tensor  # (S,) at the greatest lengths
    enough: Tensor  # (S,) the score of the last of n_best finished ones
    is_open: Tensor  # (S,) whether it is not done
    scores: Tensor  # (S, b) log-probabilities
    written: Tensor  # (S, b, T)
    lines: Tensor  # (S, b, columns) each hypothesis's ancestry: its columns of the cache

    def select(self, rows: Tensor) -> Self:
        """These sentences, in this order."""
        return type(self)(*(getattr(self, field.name).index_select(0, rows) for field in fields(self)))


class _Search:
    """A batch of S sentences and the b hypotheses of each: one at first, then k.

    A sentence is one row of the cache, which holds the tokens of all its hypotheses, dead ones included; `lines` masks
    each hypothesis's ancestry. So the cache is never reordered, and the source's keys and values are stored once.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        sources: Sequence[Sequence[int]],
        config: TranslationConfig,
        end: int,
        reader: BeamStep,
    ) -> None:
        self.config, self.end, self.reader = config, end, reader
        self.finished, self.cut_off = ([list[Hypothesis]() for _ in sources] for _ in range(2))
        lengths = [len(source) for source in sources]
        limits = [greatest_length(model, config, length) for length in lengths]
        device, width, fill = model.device, max(lengths), model.config.pad_id or 0
        ids = torch.tensor([[*source, *[fill] * (width - len(source))] for source in sources], device=device)
        ragged = min(lengths) < width
        self.memory = model.encode(  # read once
            ids,
            positions=positions_from_lengths(torch.tensor(lengths, device=device), width) if ragged else range(width),
        )
        self.cache = model.new_cache(len(sources), ROOM)
        at_limits = [length_penalty(limit, config.length_penalty) for limit in limits]
        penalties = torch.tensor(at_limits, dtype=torch.float64, device=device)  # (S,)
        start = model.config.first_token(end)
        self.sentences = _Sentences(
            places=torch.arange(len(sources), device=device),
            limits=torch.tensor(limits, device=device),
            penalties=penalties,
            enough=torch.full_like(penalties, -torch.inf),
            is_open=torch.ones_like(penalties, dtype=torch.bool),
            scores=torch.zeros(len(sources), 1, device=device),
            written=torch.full((len(sources), 1, 1), start, device=device),
            lines=torch.ones(len(sources), 1, 0, dtype=torch.bool, device=device),
        )

    def look_ahead(self) -> Continuations:
        """The 2k likeliest continuations of each sentence."""
        now, columns = self.sentences, self.cache.length
        S, b, length = now.written.shape
        itself = torch.eye(b, dtype=torch.bool, device=now.lines.device).expand(S, -1, -1)
        now.lines = torch.cat((now.lines, itself), dim=2)
        if columns + b > self.cache.capacity:
            self.cache.resize(2 * (columns + b))
        logits = self.reader.read(now.written[:, :, -1], length - 1, self.memory, self.cache, now.lines)  # (S, b, V)
        return self.reader.likeliest(logits, now.scores, min(2 * self.config.beam_size, logits[0].numel()))

    def finish(self, continuations: Continuations) -> None:
        """Move hypotheses that end within the top k to `finished`."""
        now = self.sentences
        scores, parents, tokens = (part[:, : self.config.beam_size] for part in continuations)
        ends = (tokens == self.end) & scores.isfinite() & now.is_open[:, None]
        penalty = length_penalty(now.written.shape[2], self.config.length_penalty)
        for row, column in ends.nonzero().tolist():
            finished = self.finished[now.places[row]]
            if len(finished) < self.config.beam_size:
                ids = now.written[row, parents[row, column], 1:].tolist()
                finished.append(Hypothesis(ids, scores[row, column].item() / penalty))
            now.is_open[row] = len(finished) < self.config.beam_size
            if len(finished) >= self.config.n_best:
                now.enough[row] = sorted(hypothesis.score for hypothesis in finished)[-self.config.n_best]

    def live_on(self, continuations: Continuations) -> None:
        """Continue with the first k hypotheses that do not end."""
        now = self.sentences
        _, b, length = now.written.shape
        ended = continuations.tokens == self.end  # (S, n), at most one for each of the b hypotheses
        width = min(self.config.beam_size, ended.shape[1] - b)
        living = ended.byte().argsort(dim=1, stable=True)[:, :width]  # the others come first, in their order
        now.scores, parents, tokens = (part.gather(1, living) for part in continuations)  # (S, width) each
        before, now.lines = (  # (S, width, T), (S, width, columns)
            held.gather(1, parents[:, :, None].expand(-1, -1, held.shape[2])) for held in (now.written, now.lines)
        )
        now.written = torch.cat((before, tokens[:, :, None]), dim=2)
        self._close(length)
        self._leave()

    def _close(self, length: int) -> None:
        """Mark sentences as done: at the greatest length, where open hypotheses are cut off, or when none can improve.

        A hypothesis only becomes less likely, and the penalty is greatest at the greatest length, so a bound on the
        best open score tells whether one could still be among the n best.
        """
        now, penalty = self.sentences, length_penalty(length, self.config.length_penalty)
        for row in (now.is_open & (now.limits == length)).nonzero().flatten().tolist():
            living = zip(now.written[row, :, 1:].tolist(), now.scores[row].tolist(), strict=True)
            self.cut_off[now.places[row]] = [
                Hypothesis(ids, score / penalty) for ids, score in living if score > -math.inf
            ]
        now.is_open &= (now.limits > length) & (now.scores[:, 0] / now.penalties > now.enough)

    def _leave(self) -> None:
        """Drop finished sentences once an eighth are done; dropping copies the cache."""
        rows = self.sentences.is_open.nonzero().flatten()
        if not 0 < len(rows) <= STAYING * len(self.sentences.is_open):
            return
        self.cache.select(rows)
        self.memory = self.memory.select(rows)
        self.sentences = self.sentences.select(rows)

    def results(self) -> list[list[Hypothesis]]:
        """The best of each sentence, cut-off ones last."""
        best = [sorted(done, key=lambda hypothesis: hypothesis.score, reverse=True) for done in self.finished]
        return [(done + rest)[: self.config.n_best] for done, rest in zip(best, self.cut_off, strict=True)]
