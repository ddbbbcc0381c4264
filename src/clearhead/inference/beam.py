"""Beam search: the likeliest translations that following a few hypotheses at once can find."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.config import TranslationConfig
from clearhead.inference.mode import evaluating, refuse_not_finite
from clearhead.models import EncoderDecoder
from clearhead.parts import padded_positions


class Hypothesis(NamedTuple):
    """A translation: its ids without the ends, and its log-probability in nats over its length penalty."""

    ids: list[int]
    score: float


class Continuations(NamedTuple):
    """The likeliest ways to go on with each sentence, the best first: (S, n) each."""

    scores: Tensor  # log-probability of the whole hypothesis
    parents: Tensor  # which of the sentence's hypotheses goes on
    tokens: Tensor  # with what


@torch.inference_mode()
def beam_search(
    model: EncoderDecoder, sources: Sequence[Sequence[int]], config: TranslationConfig, *, end: int
) -> list[list[Hypothesis]]:
    """The `n_best` translations of each source, the best first; fewer where no more are possible.

    Each step looks at the 2k likeliest continuations of a sentence's k hypotheses: those among the first k that end
    are finished, the first k of the others live on. A sentence is done when k of its hypotheses are finished, or at
    its greatest length; what is missing from `n_best` then is made up of hypotheses that were cut off, after the
    finished ones. A beam of 1 is greedy decoding.

    Args:
        model: in whatever mode; it translates without dropout and is left as it was.
        sources: ids of each sentence, its end token included; all are one batch, whatever `batch_size` says.
        config: how to search.
        end: the token that ends a translation, and begins it unless the model's config has another one for that.

    Raises:
        ClearheadError: the model's output is not finite.
    """
    if not sources:
        return []
    with evaluating(model):
        search = _Search(model, sources, config, end)
        while search.is_open.any():
            continuations = search.look_ahead()
            search.finish(continuations)
            search.live_on(continuations)
    return search.results()


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha, the end token counted (Wu et al. 2016, arXiv 1609.08144, equation 14)."""
    return float(((5 + length) / 6) ** alpha)


def greatest_length(model: EncoderDecoder, config: TranslationConfig, source_length: int) -> int:
    """Tokens that a translation may have, its end included: what was asked, or twice the source and ten.

    Where positions end with the block, so does the translation.
    """
    asked = config.max_new_tokens or 2 * source_length + 10
    return min(asked, model.config.block_size) if model.positions.bounded else asked


class _Search:
    """A batch of S sentences and the b hypotheses of each: one at first, then k. Done sentences leave it in time."""

    def __init__(
        self, model: EncoderDecoder, sources: Sequence[Sequence[int]], config: TranslationConfig, end: int
    ) -> None:
        self.model, self.config, self.end = model, config, end
        self.finished, self.cut_off = ([list[Hypothesis]() for _ in sources] for _ in range(2))
        lengths = [len(source) for source in sources]
        limits = [greatest_length(model, config, length) for length in lengths]
        device, width, fill = model.device, max(lengths), model.config.pad_id or 0
        ids = torch.tensor([[*source, *[fill] * (width - len(source))] for source in sources], device=device)
        ragged = min(lengths) < width
        self.memory = model.encode(  # read once
            ids, positions=padded_positions(torch.tensor(lengths, device=device), width) if ragged else range(width)
        )
        self.cache = model.new_cache(len(sources), max(limits))
        self.sentences = torch.arange(len(sources), device=device)  # (S,) which of `sources` they are
        self.limits = torch.tensor(limits, device=device)  # (S,) the greatest length of each
        self.is_open = torch.ones_like(self.limits, dtype=torch.bool)  # (S,) whether it is not done
        self.scores = torch.zeros(len(sources), 1, device=device)  # (S, b) log-probabilities, the best first
        start = model.config.first_token(end)
        self.written = torch.full((len(sources), 1, 1), start, device=device)  # (S, b, T)

    def look_ahead(self) -> Continuations:
        """The 2k likeliest continuations of each sentence."""
        hidden = self.model.decode(self.written[:, :, -1].reshape(-1, 1), self.memory, cache=self.cache)
        logits = self.model.head(hidden[:, -1])  # (S * b, V)
        chances = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        refuse_not_finite(chances.sum(-1))  # the sums, because they are few
        if self.model.config.pad_id is not None:
            chances[:, self.model.config.pad_id] = -torch.inf  # padding is no word
        n = 2 * self.config.beam
        own = chances.topk(min(n, chances.shape[1]))  # (S * b, m): no hypothesis has more among the n
        m = own.indices.shape[1]
        totals = (own.values.view(*self.scores.shape, m) + self.scores[:, :, None]).flatten(1)  # (S, b * m)
        scores, places = totals.topk(min(n, totals.shape[1]))
        return Continuations(scores, places // m, own.indices.view(totals.shape).gather(1, places))

    def finish(self, continuations: Continuations) -> None:
        """Harvest those that end, unless k others rank before them."""
        scores, parents, tokens = (part[:, : self.config.beam] for part in continuations)
        ends = (tokens == self.end) & scores.isfinite() & self.is_open[:, None]
        penalty = length_penalty(self.written.shape[2], self.config.length_penalty)
        for row, place in ends.nonzero().tolist():
            finished = self.finished[self.sentences[row]]
            if len(finished) < self.config.beam:
                ids = self.written[row, parents[row, place], 1:].tolist()
                finished.append(Hypothesis(ids, scores[row, place].item() / penalty))
            self.is_open[row] = len(finished) < self.config.beam

    def live_on(self, continuations: Continuations) -> None:
        """Go on with the first k of those that do not end."""
        b, length = self.scores.shape[1], self.written.shape[2]
        ended = continuations.tokens == self.end  # (S, n), at most one for each of the b hypotheses
        width = min(self.config.beam, ended.shape[1] - b)
        living = ended.byte().argsort(dim=1, stable=True)[:, :width]  # the others come first, in their order
        self.scores, parents, tokens = (part.gather(1, living) for part in continuations)  # (S, width) each
        before = self.written.gather(1, parents[:, :, None].expand(-1, -1, length))  # (S, width, T)
        self.written = torch.cat((before, tokens[:, :, None]), dim=2)
        self._close(length)
        sentences = torch.arange(len(parents), device=parents.device)
        thrown_out = 2 * int(self.is_open.sum()) <= len(sentences)  # seldom, as it copies everything
        if thrown_out:
            sentences = sentences[self.is_open]
            parts = (self.sentences, self.limits, self.is_open, self.scores, self.written)
            self.sentences, self.limits, self.is_open, self.scores, self.written = (part[sentences] for part in parts)
        rows = (sentences[:, None] * b + parents[sentences]).flatten()
        self._reorder(rows, same_memory=width == b and not thrown_out)

    def _close(self, length: int) -> None:
        """Sentences at their greatest length are done; what lives of them is cut off."""
        penalty = length_penalty(length, self.config.length_penalty)
        for row in (self.is_open & (self.limits == length)).nonzero().flatten().tolist():
            living = zip(self.written[row, :, 1:].tolist(), self.scores[row].tolist(), strict=True)
            self.cut_off[self.sentences[row]] = [
                Hypothesis(ids, score / penalty) for ids, score in living if score > -math.inf
            ]
        self.is_open &= self.limits > length

    def _reorder(self, rows: Tensor, same_memory: bool) -> None:
        """Go on with these rows of what the model has read; hypotheses of one sentence share what it was made of."""
        if not same_memory:
            self.cache.select(rows)
            self.memory = self.memory.select(rows)
        elif not torch.equal(rows, torch.arange(len(rows), device=rows.device)):
            for layer in self.cache.layers:
                layer.select(rows)

    def results(self) -> list[list[Hypothesis]]:
        """The best of each sentence, cut-off ones last."""
        best = [sorted(done, key=lambda hypothesis: hypothesis.score, reverse=True) for done in self.finished]
        return [(done + rest)[: self.config.n_best] for done, rest in zip(best, self.cut_off, strict=True)]
