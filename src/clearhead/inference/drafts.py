"""Guesses at the next tokens, which the model then checks in one call instead of writing one by one."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from clearhead.inference.pace import RowsContext
from clearhead.models import CausalLM

# logits (B, 1, V) after the guesses (B, G) -> the tokens (B, 1) that would be drawn from them
Draw = Callable[[Tensor, Tensor], Tensor]


class Draft(Protocol):
    """Guesses at what comes next in each row. Whatever it guesses, the text is the same; right ones make it faster."""

    def join(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        """New rows, below the others."""

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows, in this order."""

    def learn(self, tokens: Sequence[Sequence[int]]) -> None:
        """What has been written in each row since the last time."""

    def guess(self, most: Sequence[int], draw: Draw) -> list[list[int]]:
        """The next tokens of each row, at most so many."""


class NgramDraft:
    """What followed the longest earlier occurrence of a row's last tokens (prompt lookup, Saxena 2023)."""

    def __init__(self) -> None:
        self._rows = list[Repeats]()

    def join(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        self._rows += [Repeats(prompt) for prompt in prompts]

    def keep(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]

    def learn(self, tokens: Sequence[Sequence[int]]) -> None:
        for row, more in zip(self._rows, tokens, strict=True):
            row.extend(more)

    def guess(self, most: Sequence[int], draw: Draw) -> list[list[int]]:
        return [row.guess(count) for row, count in zip(self._rows, most, strict=True)]


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

    def guess(self, count: int) -> list[int]:
        """What followed where the longest repeated end stood first, if there is one; periods go on without end."""
        earlier = self._link[self._last]
        if earlier <= 0:
            return []
        start, known = self._end[earlier], len(self.ids)
        found = self.ids[start : start + count]
        while len(found) < count:
            found.append(found[start + len(found) - known])
        return found

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
    """What a smaller model would write, with the same random numbers."""

    def __init__(self, model: CausalLM) -> None:
        self._context = RowsContext(model)
        self._unread = list[list[int]]()  # of each row
        self._guessed = list[list[int]]()  # of each row; all but the last have been read

    def join(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
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

    def guess(self, most: Sequence[int], draw: Draw) -> list[list[int]]:
        memory = self._context.memory
        count = min(max(most), memory)
        if count == 0:
            return [[] for _ in most]
        unread = [row[-memory:] for row in self._unread]
        ends = torch.tensor([len(row) - 1 for row in unread])
        logits = self._context.read(unread)[torch.arange(len(ends)), ends][:, None]  # (B, T, V) -> (B, 1, V)
        guesses = draw(logits, torch.empty(len(ends), 0, dtype=torch.int64, device=logits.device))  # (B, 1)
        while guesses.shape[1] < count:
            logits = self._context.read(guesses[:, -1:].tolist())
            guesses = torch.cat((guesses, draw(logits, guesses)), dim=1)  # (B, G)
        self._unread = [[] for _ in most]
        self._guessed = guesses.tolist()
        return [row[:some] for row, some in zip(self._guessed, most, strict=True)]


def agreed(guesses: Sequence[int], tokens: Sequence[int]) -> int:
    """How many guesses are right, up to the first that is not."""
    pairs = zip(guesses, tokens, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(guesses), len(tokens)))
