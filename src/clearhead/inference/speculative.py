"""Drafters of speculative decoding: the text's own n-grams, or a smaller model."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from clearhead.config import EngineConfig
from clearhead.errors import UsageError
from clearhead.inference.engine import Engine
from clearhead.inference.kv_context import KVContext
from clearhead.inference.requests import GenerationRequest
from clearhead.inference.sampling_ahead import probs_ahead, sample_ahead, sample_from
from clearhead.inference.verification import DraftTokens, matching_prefix
from clearhead.models import CausalLM

FIRST_MIN_MATCH = 2  # initial number of tokens that must have occurred before


class Drafter(Protocol):
    """Drafts the next tokens of each row."""

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        """Append a new row for each prompt."""

    def reorder(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order, and drop the others."""

    def accept(self, tokens: Sequence[Sequence[int]]) -> None:
        """Take in what each row has gained since the last call; roll back rejected draft tokens."""

    def draft(self, max_tokens: Sequence[int], requests: Sequence[GenerationRequest]) -> DraftTokens:
        """Draft at most `max_tokens` tokens for each row; the requests hold the sampling."""


class NgramDrafter:
    """What followed the longest earlier occurrence of a row's last tokens (prompt lookup, Saxena 2023).

    Short matches predict little, and a rejected draft costs time: the required length adapts per row, so that about
    half of the drafts begin with the right token.
    """

    def __init__(self) -> None:
        self._rows = list[SuffixAutomaton]()
        self._min_match = list[int]()  # required length of the match
        self._drafted = list[list[int]]()

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        self._rows += [SuffixAutomaton(prompt) for prompt in prompts]
        self._min_match += [FIRST_MIN_MATCH for _ in prompts]
        self._drafted += [[] for _ in prompts]

    def reorder(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]
        self._min_match = [self._min_match[row] for row in rows]
        self._drafted = [self._drafted[row] for row in rows]

    def accept(self, tokens: Sequence[Sequence[int]]) -> None:
        for index, (row, drafted, more) in enumerate(zip(self._rows, self._drafted, tokens, strict=True)):
            if drafted:
                change = -1 if drafted[0] == more[0] else 1
                self._min_match[index] = max(1, self._min_match[index] + change)
            row.extend(more)
        self._drafted = [[] for _ in tokens]

    def draft(self, max_tokens: Sequence[int], requests: Sequence[GenerationRequest]) -> DraftTokens:
        rows = zip(self._rows, self._min_match, max_tokens, strict=True)
        self._drafted = [row.draft(count) if row.repeated_length >= min_match else [] for row, min_match, count in rows]
        return DraftTokens(self._drafted)


class SuffixAutomaton:
    """The longest suffix of a sequence that occurs in it before, in constant time per token.

    A suffix automaton (Blumer et al. 1985): a state stands for the substrings that end at the same positions. The
    longest substring of the state that the last state links to is the answer.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list[int]()
        self._next = [dict[int, int]()]  # by state: transitions
        self._link = [-1]  # by state: suffix links
        self._length = [0]  # by state: length of its longest substring
        self._end = [0]  # by state: end of its first occurrence
        self._last = 0
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Append tokens."""
        for token in ids:
            self.ids.append(token)
            self._add(token)

    @property
    def repeated_length(self) -> int:
        """Length of the longest suffix that occurs before."""
        return self._length[max(0, self._link[self._last])]

    def draft(self, count: int) -> list[int]:
        """Draft what followed the first occurrence of that suffix; a period repeats as long as needed."""
        earlier = self._link[self._last]
        if earlier <= 0:
            return []
        start, known = self._end[earlier], len(self.ids)
        continuation = self.ids[start : start + count]
        while len(continuation) < count:
            continuation.append(continuation[start + len(continuation) - known])
        return continuation

    def _add(self, token: int) -> None:
        new = self._state(self._length[self._last] + 1, {}, 0, len(self.ids))
        state = self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state >= 0:
            self._link[new] = self._transition(state, token)
        self._last = new

    def _transition(self, state: int, token: int) -> int:
        """The state of this state's longest substring plus the token, split off from a longer state if need be."""
        old = self._next[state][token]
        length = self._length[state] + 1
        if self._length[old] == length:
            return old
        split = self._state(length, dict(self._next[old]), self._link[old], self._end[old])
        self._link[old] = split
        while state >= 0 and self._next[state].get(token) == old:
            self._next[state][token] = split
            state = self._link[state]
        return split

    def _state(self, length: int, following: dict[int, int], link: int, end: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._end.append(end)
        return len(self._next) - 1


class ModelDrafter:
    """Draft with a smaller model: greedily if all requests are greedy, else sampled, with probabilities."""

    def __init__(self, model: CausalLM, engine: EngineConfig) -> None:
        """
        Args:
            engine: whose backend the draft model uses, too.
        """
        self._engine = Engine(model, EngineConfig(engine=engine.engine))
        self._context, self._has_backend = KVContext(model), False
        self._unread = list[list[int]]()  # of each row
        self._drafted = list[list[int]]()  # draft tokens of each row; all but the last have been read

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        if not self._has_backend:
            self._context.backend, self._has_backend = self._engine.backend(new_tokens), True
        self._context.prefill(prompts, new_tokens)
        self._unread += [[] for _ in prompts]
        self._drafted += [[] for _ in prompts]

    def reorder(self, rows: Sequence[int]) -> None:
        self._context.reorder(rows)
        self._unread = [self._unread[row] for row in rows]
        self._drafted = [self._drafted[row] for row in rows]

    def accept(self, tokens: Sequence[Sequence[int]]) -> None:
        surplus = []
        for unread, drafted, more in zip(self._unread, self._drafted, tokens, strict=True):
            read = drafted[:-1]
            n_accepted = matching_prefix(read, more[:-1])
            surplus.append(len(read) - n_accepted)
            unread += more[n_accepted:]
        self._context.rollback(surplus)
        self._drafted = [[] for _ in tokens]

    def draft(self, max_tokens: Sequence[int], requests: Sequence[GenerationRequest]) -> DraftTokens:
        max_rollback = self._context.max_rollback
        max_tokens = [min(count, max_rollback) for count in max_tokens]
        if not any(max_tokens):
            return DraftTokens([[] for _ in max_tokens])
        logits = self._catch_up(max_tokens)
        draft_tokens = torch.empty(len(max_tokens), 0, dtype=torch.int64, device=logits.device)
        probs = list[Tensor]()
        while True:
            tokens, *new_probs = self._sample(requests, logits, draft_tokens)
            draft_tokens, probs = torch.cat((draft_tokens, tokens), dim=1), probs + new_probs  # (B, G)
            self._drafted = [row[:count] for row, count in zip(draft_tokens.tolist(), max_tokens, strict=True)]
            if (G := draft_tokens.shape[1]) == max(max_tokens):
                return DraftTokens(self._drafted, torch.cat(probs, dim=1) if probs else None)
            logits = self._context.forward(
                [row[-1:] if count > G else [] for row, count in zip(self._drafted, max_tokens, strict=True)]
            )

    def _catch_up(self, max_tokens: Sequence[int]) -> Tensor:
        """Catch up: rows to draft for read what they gained since the last call; return the logits (B, 1, V)."""
        max_rollback = self._context.max_rollback
        tokens = [row[-max_rollback:] if count else [] for row, count in zip(self._unread, max_tokens, strict=True)]
        self._unread = [[] if count else row for row, count in zip(self._unread, max_tokens, strict=True)]
        logits = self._context.forward(tokens)  # (B, T, V)
        ends = torch.tensor([max(0, len(row) - 1) for row in tokens], device=logits.device)
        return logits[torch.arange(len(ends), device=logits.device), ends][:, None]

    def _sample(self, requests: Sequence[GenerationRequest], logits: Tensor, draft_tokens: Tensor) -> list[Tensor]:
        """A draft token (B, 1) for each row; if any text is sampled, its probabilities (B, 1, V) too."""
        if all(request.config.greedy for request in requests):
            return [sample_ahead(requests, logits, draft_tokens)]
        probs = probs_ahead(requests, logits, draft_tokens)  # (B, 1, V)
        offsets = [draft_tokens.shape[1]] * len(requests)
        return [sample_from(requests, probs[:, 0], offsets, ["token"] * len(requests))[:, None], probs]


def drafter_for(config: EngineConfig, model: CausalLM | None, vocab_size: int) -> Drafter | None:
    """What drafts by an engine's config, if anything does.

    Raises:
        UsageError: a run is named and its model not given, or one that does not fit.
    """
    name = config.draft
    if model is None:
        if name in (None, "ngrams"):
            return None if name is None else NgramDrafter()
        raise UsageError(f"draft: '{name}' is a run, so its model must be given")
    if name == "ngrams":
        raise UsageError("draft: ngrams or a smaller model, not both")
    if model.config.vocab_size != vocab_size:
        raise UsageError(
            f"draft: it knows {model.config.vocab_size} tokens and the model {vocab_size}; give one like it"
        )
    return ModelDrafter(model, config)
