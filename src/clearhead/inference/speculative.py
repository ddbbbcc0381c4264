"""Drafts for speculative decoding: from the text's own n-grams, or from a smaller model."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from clearhead.config import EngineConfig
from clearhead.inference.engine import Engine
from clearhead.inference.kv_context import Context
from clearhead.inference.requests import Text, draw_ahead, draw_from, odds_ahead
from clearhead.inference.verification import DraftTokens, agreed
from clearhead.models import CausalLM

FIRST_NEEDED = 2  # initial number of tokens that must have occurred before


class Draft(Protocol):
    """Drafts the next tokens of each row."""

    def join(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        """Append new rows."""

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order, and drop the others."""

    def learn(self, tokens: Sequence[Sequence[int]]) -> None:
        """Take in what each row has gained since the last call; roll back rejected draft tokens."""

    def guess(self, most: Sequence[int], texts: Sequence[Text]) -> DraftTokens:
        """Draft at most this many tokens for each row; the texts hold the sampling."""


class NgramDraft:
    """What followed the longest earlier occurrence of a row's last tokens (prompt lookup, Saxena 2023).

    Short matches predict little, and a rejected draft costs time: the required length adapts per row, so that about
    half of the drafts begin with the right token.
    """

    def __init__(self) -> None:
        self._rows = list[Repeats]()
        self._needed = list[int]()  # required length of the match
        self._guessed = list[list[int]]()

    def join(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        self._rows += [Repeats(prompt) for prompt in prompts]
        self._needed += [FIRST_NEEDED for _ in prompts]
        self._guessed += [[] for _ in prompts]

    def keep(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]
        self._needed = [self._needed[row] for row in rows]
        self._guessed = [self._guessed[row] for row in rows]

    def learn(self, tokens: Sequence[Sequence[int]]) -> None:
        for index, (row, guessed, more) in enumerate(zip(self._rows, self._guessed, tokens, strict=True)):
            if guessed:
                change = -1 if guessed[0] == more[0] else 1
                self._needed[index] = max(1, self._needed[index] + change)
            row.extend(more)
        self._guessed = [[] for _ in tokens]

    def guess(self, most: Sequence[int], texts: Sequence[Text]) -> DraftTokens:
        rows = zip(self._rows, self._needed, most, strict=True)
        self._guessed = [row.guess(count) if row.repeated >= needed else [] for row, needed, count in rows]
        return DraftTokens(self._guessed)


class Repeats:
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
    def repeated(self) -> int:
        """Length of the longest suffix that occurs before."""
        return self._length[max(0, self._link[self._last])]

    def guess(self, count: int) -> list[int]:
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
            self._link[new] = self._followed(state, token)
        self._last = new

    def _followed(self, state: int, token: int) -> int:
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


class ModelDraft:
    """Draft with a smaller model: greedily if all texts are greedy, else sampled, with probabilities."""

    def __init__(self, model: CausalLM, engine: EngineConfig) -> None:
        """
        Args:
            engine: whose backend the draft model uses, too.
        """
        self._engine = Engine(model, EngineConfig(engine=engine.engine))
        self._context = Context(model)
        self._unread = list[list[int]]()  # of each row
        self._guessed = list[list[int]]()  # draft tokens of each row; all but the last have been read

    def join(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        self._context.writer = self._engine.writer(new_tokens)
        self._context.join(prompts, new_tokens)
        self._unread += [[] for _ in prompts]
        self._guessed += [[] for _ in prompts]

    def keep(self, rows: Sequence[int]) -> None:
        self._context.keep(rows)
        self._unread = [self._unread[row] for row in rows]
        self._guessed = [self._guessed[row] for row in rows]

    def learn(self, tokens: Sequence[Sequence[int]]) -> None:
        surplus = []
        for unread, guessed, more in zip(self._unread, self._guessed, tokens, strict=True):
            read = guessed[:-1]
            right = agreed(read, more[:-1])
            surplus.append(len(read) - right)
            unread += more[right:]
        self._context.forget(surplus)
        self._guessed = [[] for _ in tokens]

    def guess(self, most: Sequence[int], texts: Sequence[Text]) -> DraftTokens:
        memory = self._context.memory
        most = [min(count, memory) for count in most]
        if not any(most):
            return DraftTokens([[] for _ in most])
        logits = self._read_the_rest(most)
        guesses = torch.empty(len(most), 0, dtype=torch.int64, device=logits.device)
        odds = list[Tensor]()
        while True:
            tokens, *new_odds = self._draw(texts, logits, guesses)
            guesses, odds = torch.cat((guesses, tokens), dim=1), odds + new_odds  # (B, G)
            self._guessed = [row[:count] for row, count in zip(guesses.tolist(), most, strict=True)]
            if (G := guesses.shape[1]) == max(most):
                return DraftTokens(self._guessed, torch.cat(odds, dim=1) if odds else None)
            logits = self._context.read(
                [row[-1:] if count > G else [] for row, count in zip(self._guessed, most, strict=True)]
            )

    def _read_the_rest(self, most: Sequence[int]) -> Tensor:
        """Catch up: rows to draft for read what they gained since the last call; return the logits (B, 1, V)."""
        memory = self._context.memory
        tokens = [row[-memory:] if count else [] for row, count in zip(self._unread, most, strict=True)]
        self._unread = [[] if count else row for row, count in zip(self._unread, most, strict=True)]
        logits = self._context.read(tokens)  # (B, T, V)
        ends = torch.tensor([max(0, len(row) - 1) for row in tokens], device=logits.device)
        return logits[torch.arange(len(ends), device=logits.device), ends][:, None]

    def _draw(self, texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> list[Tensor]:
        """A draft token (B, 1) for each row; if any text is sampled, its probabilities (B, 1, V) too."""
        if all(text.config.greedy for text in texts):
            return [draw_ahead(texts, logits, guesses)]
        odds = odds_ahead(texts, logits, guesses)  # (B, 1, V)
        places = [guesses.shape[1]] * len(texts)
        return [draw_from(texts, odds[:, 0], places, ["token"] * len(texts))[:, None], odds]
