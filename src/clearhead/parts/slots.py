"""The cache of a changing batch: each row has a slot of its own, so that nothing moves when others join or leave."""

from collections.abc import Callable, Sequence
from operator import add

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.parts.cache import DecoderCache, KeysValues, Project, SelfAttentionCache
from clearhead.parts.masks import Positions
from clearhead.parts.positions import refuse_beyond


class SlotCache:
    """Slots for rows of any length, each from its first column on.

    What is read into the rows of some slots is kept when it has succeeded:

        rows = cache.rows(slots)
        logits = model(ids, cache=rows)
        cache.keep(rows)
    """

    def __init__(self, new_cache: Callable[[int, int], DecoderCache]) -> None:
        """
        Args:
            new_cache: makes a cache for a number of rows and of columns, as `CausalLM.new_cache`.
        """
        self._new_cache = new_cache
        self._cache = new_cache(0, 0)
        self._free = list[int]()  # those that were never taken, then those that were released first
        self._lengths = list[int]()  # columns in use of each slot
        self._starts = list[int]()  # the position of its first column

    @property
    def capacity(self) -> int:
        """Columns of a slot."""
        return self._cache.capacity

    @property
    def free(self) -> int:
        """How many slots are free."""
        return len(self._free)

    def length(self, slot: int) -> int:
        """Columns in use."""
        return self._lengths[slot]

    def reserve(self, slots: int, columns: int) -> None:
        """Have at least so many slots, of at least so many columns; where these are more than before, all is copied."""
        before = len(self._lengths)
        if slots <= before and columns <= self.capacity:
            return
        old, new = self._cache, self._new_cache(max(slots, before), max(columns, self.capacity))
        used = max(self._lengths, default=0)
        for held, room in zip(old.keys_and_values, new.keys_and_values, strict=True):
            room[:before, :, :used] = held[:, :, :used]
        if old.tokens is not None and new.tokens is not None:
            new.tokens[:before] = old.tokens
        self._cache = new
        self._free += range(before, slots)
        self._lengths += [0] * (slots - before)
        self._starts += [0] * (slots - before)

    def make_free(self, count: int, columns: int) -> None:
        """Have so many free slots; where there are too few, there will be half as many again at least."""
        held = len(self._lengths)
        missing = count - len(self._free)
        self.reserve(held + max(missing, held // 2) if missing > 0 else held, columns)

    def take(self, count: int, columns: int) -> list[int]:
        """Free slots for so many new rows, with zeros in them: what is masked is multiplied by 0, and NaN stays NaN."""
        self.make_free(count, columns)
        taken, self._free = self._free[:count], self._free[count:]
        for slot in taken:
            self.clear(slot)
            for held in self._cache.keys_and_values:
                held[slot] = 0
        return taken

    def take_back(self, slot: int) -> None:
        """Take a free slot, and what it still holds."""
        self._free.remove(slot)

    def release(self, slots: Sequence[int]) -> None:
        """The rows of these slots have left. Slots hold what they held until they are taken, the oldest first."""
        self._free += slots

    def clear(self, slot: int) -> None:
        """Forget all of a row."""
        self._lengths[slot] = self._starts[slot] = 0
        if self._cache.tokens is not None:
            self._cache.tokens[slot] = 0

    def copy(self, source: int, target: int) -> None:
        """Let the target hold what the source holds."""
        used = self._lengths[source]
        for held in self._cache.keys_and_values:
            held[target, :, :used] = held[source, :, :used]
        if self._cache.tokens is not None:
            self._cache.tokens[target] = self._cache.tokens[source]
        self._lengths[target], self._starts[target] = used, self._starts[source]

    def evict(self, slot: int, kept: int) -> None:
        """Forget all but the last columns of a row. Positions continue, so this is for models with unbounded ones."""
        used = self._lengths[slot]
        first = max(0, used - kept)
        for held in self._cache.keys_and_values:
            held[slot, :, : used - first] = held[slot, :, first:used].clone()  # the two places overlap
        self._lengths[slot] -= first
        self._starts[slot] += first

    def rollback(self, slot: int, columns: int, last: Sequence[int]) -> None:
        """Forget the last columns of a row.

        Args:
            last: the ids before them, as many as there are; for a model with n-gram tables.
        """
        self._lengths[slot] -= columns
        tokens = self._cache.tokens
        if tokens is not None:
            ids = [token + 1 for token in last[-tokens.shape[1] :]]
            tokens[slot] = torch.tensor([0] * (tokens.shape[1] - len(ids)) + ids, device=tokens.device)

    def rows(self, slots: Sequence[int], counts: Sequence[int] | None = None) -> "SlotRows":
        """The rows of these slots, for one call of a model or of native code.

        Args:
            counts: how many of the call's tokens (B, T) each row has, the others being padding; all by default.
        """
        lengths, starts = ([numbers[slot] for slot in slots] for numbers in (self._lengths, self._starts))
        return SlotRows(self._cache, slots, lengths, starts, counts)

    def keep(self, rows: "SlotRows") -> None:
        """Keep what calls have read into these rows."""
        for slot, length in zip(rows.slots, rows.lengths, strict=True):
            self._lengths[slot] = length
        if self._cache.tokens is not None and rows.tokens is not None:
            self._cache.tokens[rows.index] = rows.tokens


class SlotRows(DecoderCache):
    """The rows of some slots, B of them: a call's columns are written behind what each row holds."""

    def __init__(
        self,
        cache: DecoderCache,
        slots: Sequence[int],
        lengths: list[int],
        starts: Sequence[int],
        counts: Sequence[int] | None,
    ) -> None:
        """
        Args:
            cache: with a row for each slot.
            slots: of these rows.
            lengths: columns that each of them holds.
            starts: positions of their first columns.
            counts: how many of a call's tokens each of them has; None: all.
        """
        device = next((tensor.device for tensor in cache.tensors), None)
        self.slots, self.lengths, self.counts, self._starts = slots, lengths, counts, starts
        self.before = lengths  # columns of each row before the last call
        self.index = torch.tensor(slots, dtype=torch.int64, device=device)  # (B,)
        end = slots[0] + len(slots) if slots else 0
        self.block = slice(slots[0], end) if [*slots] == [*range(end - len(slots), end)] and slots else None
        self._places: tuple[Tensor, Tensor, Tensor] | None = None  # of the last call
        tokens = None if cache.tokens is None else cache.tokens[self.index]
        super().__init__([SlotLayer(layer, self) for layer in cache.layers], cache.capacity, tokens=tokens)
        self.positions = self._positions(starts, lengths)

    def extend(
        self, positions: Tensor | None, columns: int, *, limit: int | None = None
    ) -> tuple[Positions, Positions]:
        """As of any cache, but that each row goes on where it ends.

        Raises:
            InputError: `positions` are given, the counts do not fit the call, or a row has no room.
        """
        counts = [columns] * len(self.slots) if self.counts is None else self.counts
        if positions is not None or len(counts) != len(self.slots) or not all(0 <= n <= columns for n in counts):
            raise InputError("rows in slots go on where they end, with so many of a call's tokens as their counts say")
        lengths = list(map(add, self.lengths, counts))
        if max(lengths, default=0) > self.capacity:
            raise InputError(f"a slot has room for {self.capacity} columns and needs {max(lengths)}")
        query = self._positions(list(map(add, self._starts, self.lengths)), counts, columns)
        if limit is not None:
            refuse_beyond(query, limit)
        self.before, self.lengths, self._places = self.lengths, lengths, None
        self.positions = self._positions(self._starts, self.lengths)
        return query, self.positions

    def advance(self, columns: int) -> None:
        """Nothing is left to count: `extend` has done it."""

    @property
    def is_even(self) -> bool:
        """Whether all rows hold as many columns."""
        return len({*self.before}) == 1

    def places(self, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of each of a call's N tokens that are no padding: its row, which token of the row it is, and its column."""
        if self._places is None:
            row, step = self.is_real(columns).nonzero(as_tuple=True)
            self._places = row, step, self._column(self.before)[row, 0] + step
        return self._places

    def is_real(self, columns: int) -> Tensor:
        """Which tokens of a call (B, T) are no padding."""
        counts = [columns] * len(self.slots) if self.counts is None else self.counts
        return torch.arange(columns, device=self.index.device) < self._column(counts)

    def _positions(self, first: Sequence[int], counts: Sequence[int], width: int = 0) -> Positions:
        """So many positions of each row: (B, T), -1 behind them, or a range that all rows share.

        Args:
            first: the first position of each row.
            width: T at least.
        """
        width = max(width, *counts, 0)
        if len({*first}) == 1 and {*counts} == {width}:
            return range(first[0], first[0] + width)
        step = torch.arange(width, device=self.index.device)
        return (self._column(first) + step).where(step < self._column(counts), -1)

    def _column(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor([*numbers], device=self.index.device)[:, None]  # (B, 1)


class SlotLayer(SelfAttentionCache):
    """Keys and values of one layer in all slots, of which a call reads and writes some."""

    def __init__(self, layer: SelfAttentionCache, rows: SlotRows) -> None:
        self.keys, self.values = layer.keys, layer.values  # (slots, H_kv, capacity, K)
        self._rows = rows

    def update(self, project: Project) -> KeysValues:
        """Write each row's new columns behind its others; return all of them (B, H_kv, T, K)."""
        return tuple(self._written(*pair) for pair in zip((self.keys, self.values), project(), strict=True))  # type: ignore[return-value]

    def _written(self, held: Tensor, new: Tensor) -> Tensor:
        """One of the two, (B, H_kv, T, K), with the new columns (B, H_kv, T_q, K)."""
        rows = self._rows
        if rows.block is not None and rows.counts is None and rows.is_even:
            first = rows.before[0]
            held[rows.block, :, first : first + new.shape[2]] = new
        else:
            row, step, column = rows.places(new.shape[2])  # (N,) each
            held[rows.index[row], :, column] = new[row, :, step]  # (N, H_kv, K)
        used = held[:, :, : rows.length]
        return used.index_select(0, rows.index) if rows.block is None else used[rows.block]
