"""Guesses at the next tokens, which the model then checks in one call instead of writing one by one."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from clearhead.config import EngineConfig
from clearhead.inference.engine import Engine
from clearhead.inference.kv_context import Context
from clearhead.inference.requests import Text, draw_ahead, draw_from, odds_ahead
from clearhead.inference.verification import Guesses, agreed
from clearhead.models import CausalLM

FIRST_NEEDED = 2  # tokens that must have occurred before, until more is known


class Draft(Protocol):
    """Guesses at what comes next in each row."""

    def join(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        """New rows, below the others."""

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows, in this order."""

    def learn(self, tokens: Sequence[Sequence[int]]) -> None:
        """What has been written in each row since the last time."""

    def guess(self, most: Sequence[int], texts: Sequence[Text]) -> Guesses:
        """The next tokens of each row, at most so many; the texts say how tokens are drawn."""


class NgramDraft:
    """What followed the longest earlier occurrence of a row's last tokens (prompt lookup, Saxena 2023).

    Short ones say little, and a wrong guess costs time: how long one must be is learnt, in each row, so that about
    every second guess begins with the right token.
    """

    def __init__(self) -> None:
        self._rows = list[Repeats]()
        self._needed = list[int]()  # tokens of an occurrence
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

    def guess(self, most: Sequence[int], texts: Sequence[Text]) -> Guesses:
        rows = zip(self._rows, self._needed, most, strict=True)
        self._guessed = [row.guess(count) if row.repeated >= needed else [] for row, needed, count in rows]
        return Guesses(self._guessed)


class Repeats:
    """The longest end of a sequence that occurs in it before, in constant time a token.

    A suffix automaton (Blumer et al. 1985): a state stands for parts of the sequence that end at the same places. The
    longest one of the state that the last state links to is the answer.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list[int]()
        self._next = [dict[int, int]()]  # by state: the state that each token leads to
        self._link = [-1]  # the state of the longest end that also ends elsewhere
        self._length = [0]  # of its longest part
        self._end = [0]  # how many tokens have been read where it first ends
        self._last = 0
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        """More tokens at the end."""
        for token in ids:
            self.ids.append(token)
            self._add(token)

    @property
    def repeated(self) -> int:
        """How many tokens the longest end has that occurs before."""
        return self._length[max(0, self._link[self._last])]

    def guess(self, count: int) -> list[int]:
        """What followed where that end stood first; periods go on without end."""
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
        """The state of exactly this state's longest part and the token, which is split off from others if need be."""
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
    """What a smaller model would write: the likeliest tokens where they are asked for, else drawn, with their odds."""

    def __init__(self, model: CausalLM, engine: EngineConfig) -> None:
        """
        Args:
            engine: who computes its tokens.
        """
        self._engine = Engine(model, EngineConfig(engine=engine.engine))
        self._context = Context(model)
        self._unread = list[list[int]]()  # of each row
        self._guessed = list[list[int]]()  # of each row; all but the last have been read

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

    def guess(self, most: Sequence[int], texts: Sequence[Text]) -> Guesses:
        memory = self._context.memory
        most = [min(count, memory) for count in most]
        if not any(most):
            return Guesses([[] for _ in most])
        logits = self._read_the_rest(most)
        guesses = torch.empty(len(most), 0, dtype=torch.int64, device=logits.device)
        odds = list[Tensor]()
        while True:
            tokens, *new_odds = self._draw(texts, logits, guesses)
            guesses, odds = torch.cat((guesses, tokens), dim=1), odds + new_odds  # (B, G)
            self._guessed = [row[:count] for row, count in zip(guesses.tolist(), most, strict=True)]
            if (G := guesses.shape[1]) == max(most):
                return Guesses(self._guessed, torch.cat(odds, dim=1) if odds else None)
            logits = self._context.read(
                [row[-1:] if count > G else [] for row, count in zip(self._guessed, most, strict=True)]
            )

    def _read_the_rest(self, most: Sequence[int]) -> Tensor:
        """Rows for which there are guesses to be made read what has been written since: logits (B, 1, V) after it."""
        memory = self._context.memory
        tokens = [row[-memory:] if count else [] for row, count in zip(self._unread, most, strict=True)]
        self._unread = [[] if count else row for row, count in zip(self._unread, most, strict=True)]
        logits = self._context.read(tokens)  # (B, T, V)
        ends = torch.tensor([max(0, len(row) - 1) for row in tokens], device=logits.device)
        return logits[torch.arange(len(ends), device=logits.device), ends][:, None]

    def _draw(self, texts: Sequence[Text], logits: Tensor, guesses: Tensor) -> list[Tensor]:
        """A token (B, 1) of each row; where chance has a say, its probabilities (B, 1, V) too."""
        if all(text.config.greedy for text in texts):
            return [draw_ahead(texts, logits, guesses)]
        odds = odds_ahead(texts, logits, guesses)  # (B, 1, V)
        places = [guesses.shape[1]] * len(texts)
        return [draw_from(texts, odds[:, 0], places, ["token"] * len(texts))[:, None], odds]
