"""Rows that read at a pace of their own, take back what they have read, come and go."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.inference.context import Reader

SPARE = 64  # columns that a cache grows by, at least


class RowsContext(Reader):
    """What a model has read of rows that do not go in step.

    They are rows 0, 1, ... in the order in which they joined; when some leave, the others move up.
    """

    _surplus: Sequence[int] = ()  # columns at the end of each row that hold nothing, or nothing any more

    @torch.inference_mode()
    def join(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Tensor:
        """Read the prompts of new rows, and leave the others alone: the logits (B', V) after each.

        Args:
            prompts: at least one token each.
            new_tokens: how many may follow one; more are possible, but move what the cache holds.
        """
        self._settle()
        begun = self._begun(prompts)
        fresh, logits = self._read_prompts(begun, new_tokens)
        if self._ids:
            self._cache.append(fresh, (len(self._ids), len(begun)))
        else:
            self._cache = fresh
        self._ids += begun
        self._surplus = [0] * len(self._ids)
        return logits

    @torch.inference_mode()
    def read(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Read these tokens of each row: the logits (B, T, V) after each, T being the most of a row, at least one.

        A row must have `room` for them, or it slides earlier than it would if it read them one by one.
        """
        self._settle()
        self._slide_for(tokens)
        lengths = [len(more) for more in tokens]
        width = max(lengths)
        self._make_room_for(width)
        positions = None if min(lengths) == width else self._next_positions(lengths)
        for row, more in zip(self._ids, tokens, strict=True):
            row.extend(more)
        self._surplus = [width - length for length in lengths]
        ids = torch.tensor([[*more, *[0] * (width - len(more))] for more in tokens], device=self.model.device)  # (B, T)
        if width == 1 and positions is None:
            return self.read_token(ids[:, 0], self._cache)[:, None]
        return self.model.head(self.model.hidden(ids, positions=positions, cache=self._cache))

    def forget(self, counts: Sequence[int]) -> None:
        """Each row has not read its last tokens, so many."""
        for row, count in zip(self._ids, counts, strict=True):
            del row[len(row) - count :]
        self._surplus = [old + new for old, new in zip(self._surplus, counts, strict=True)]

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows, in this order."""
        self._settle()
        self._ids = [self._ids[row] for row in rows]
        self._surplus = [0] * len(rows)
        self._cache.select(torch.tensor(rows, dtype=torch.int64, device=self.model.device))

    def room(self, row: int) -> int | None:
        """How many tokens a row can read in one call; None: any number."""
        if self._limit is None:
            return None
        read = len(self._ids[row])
        return self._limit - (read if read < self._limit else self._limit // 2)

    @property
    def memory(self) -> int:
        """How many of the last tokens are there whatever happened, and can be forgotten."""
        return self._kept_columns() if self._limit is None else self._limit // 2

    def _settle(self) -> None:
        """Give back the columns that hold nothing."""
        if any(self._surplus):
            surplus = torch.tensor(self._surplus, device=self.model.device)
            self._cache.forget(surplus, self._last_tokens())
            self._surplus = [0] * len(self._ids)

    def _last_tokens(self) -> Tensor | None:
        """What a cache's `tokens` (B, n - 1) hold of these rows."""
        held = self._cache.tokens
        if held is None:
            return None
        places = held.shape[1]
        last = [[token + 1 for token in ids[-places:]] for ids in self._ids]
        return torch.tensor([[0] * (places - len(row)) + row for row in last], device=held.device)

    def _slide_for(self, tokens: Sequence[Sequence[int]]) -> None:
        limit = self._limit
        if limit is None:
            return
        full = [row for row, more in enumerate(tokens) if len(self._ids[row]) + len(more) > limit]
        if full:
            self._slide(full, min(limit // 2, limit - max(len(tokens[row]) for row in full)))

    def _make_room_for(self, columns: int) -> None:
        cache, held = self._cache, min(self._kept_columns(), max(map(len, self._ids)))
        if cache.length + columns <= cache.capacity:
            return
        cache.drop(max(0, cache.length - held))
        needed = held + columns
        if 4 * needed > 3 * cache.capacity:  # or columns would be moved again soon
            cache.resize(needed + max(SPARE, needed // 2))

    def _next_positions(self, lengths: Sequence[int]) -> Tensor:
        """Where the next tokens of each row stand, (B, T), -1 behind the last."""
        held, device = self._cache.positions, self.model.device
        start = torch.full((len(lengths),), held.stop, device=device) if isinstance(held, range) else held[:, -1] + 1
        steps = torch.arange(max(lengths), device=device)
        inside = steps < torch.tensor(lengths, device=device)[:, None]  # (B, T)
        return (start[:, None] + steps).where(inside, -1)
