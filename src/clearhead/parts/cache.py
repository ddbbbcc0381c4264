"""Keys and values kept between calls, so that a token is projected once. Passed explicitly, one entry per layer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.parts.masks import Positions, as_tensor
from clearhead.parts.positions import refuse_beyond

KeysValues = tuple[Tensor, Tensor]  # (B, H_kv, T, K) each
Project = Callable[[], KeysValues]


class AttentionCache(Protocol):
    """The interface of a cache: `update` takes a projection of the new keys and values, and returns all of them."""

    def update(self, project: Project) -> KeysValues: ...


class SelfAttentionCache:
    """A preallocated cache of `capacity` columns that appends."""

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.keys = torch.zeros(shape, dtype=dtype, device=device)  # (B, H_kv, capacity, K)
        self.values = torch.zeros(shape, dtype=dtype, device=device)  # (B, H_kv, capacity, K)
        self.length = 0

    def update(self, project: Project) -> KeysValues:
        """Append the new columns; return all of them."""
        keys, values = project()
        end = self.length + keys.shape[2]
        assert end <= self.keys.shape[2], f"the cache holds {self.keys.shape[2]} columns, not {end}"
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def shift(self, rows: Tensor, columns: int) -> None:
        """Move the used columns of these rows to the right, over the last ones."""
        for held in self._held:
            held[rows, :, columns : self.length] = held[rows, :, : self.length - columns]

    def drop(self, columns: int) -> None:
        """Forget the oldest columns and move the rest to the front."""
        kept = slice(columns, self.length)
        self.length -= columns
        for held in self._held:
            held[:, :, : self.length] = held[:, :, kept].clone()  # the two places overlap

    def resize(self, capacity: int) -> None:
        """Change the capacity to this many columns."""
        self.keys, self.values = (
            _copy_right_aligned([held], [self.length], self.length, capacity) for held in self._held
        )

    def append(self, others: Sequence["SelfAttentionCache"], length: int, capacity: int) -> None:
        """Append the rows of the others; all rows end in the same column."""
        parts = [self, *others]
        lengths = [part.length for part in parts]
        both = zip(*(part._held for part in parts), strict=True)  # the keys of all, and the values of all
        self.keys, self.values = (_copy_right_aligned(held, lengths, length, capacity) for held in both)
        self.length = length

    @property
    def _held(self) -> KeysValues:
        return self.keys, self.values

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; in place, copying used columns only, unless rows are added."""
        if len(rows) > len(self.keys):
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
            return
        used = slice(self.length)
        for held in self._held:
            held[: len(rows), :, used] = held[:, :, used].index_select(0, rows)
        self.keys, self.values = self.keys[: len(rows)], self.values[: len(rows)]


def _copy_right_aligned(parts: Sequence[Tensor], lengths: Sequence[int], end: int, capacity: int) -> Tensor:
    """Copy the used columns of each part (B, H, T, K) into a new tensor, rows stacked, so that all end at `end`."""
    rows = sum(len(part) for part in parts)
    room = parts[0].new_zeros(rows, parts[0].shape[1], capacity, parts[0].shape[3])  # (all B, H, capacity, K)
    for part, length, target in zip(parts, lengths, torch.split(room, [len(part) for part in parts]), strict=True):
        target[:, :, end - length : end] = part[:, :, :length]
    return room


class MemoryCache:
    """Projects once: cross-attention's keys and values depend on the memory alone."""

    def __init__(self) -> None:
        self.held: KeysValues | None = None

    def update(self, project: Project) -> KeysValues:
        """The memory's keys and values, projected at the first call."""
        if self.held is None:
            keys, values = project()
            self.held = keys.contiguous(), values.contiguous()  # as they are read again and again
        return self.held

    def reset(self) -> None:
        """Forget the memory."""
        self.held = None

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self.held is not None:
            keys, values = self.held
            self.held = keys.index_select(0, rows), values.index_select(0, rows)

    def append(self, others: Sequence["MemoryCache"]) -> None:
        """The rows of the others come below these; their memories are of one length."""
        if held := _keys_values_of_all([self, *others]):
            keys, values = zip(*held, strict=True)
            self.held = torch.cat(keys), torch.cat(values)

    def replace(self, rows: Tensor, other: "MemoryCache") -> None:
        """These rows now hold what the rows of `other` hold, of a memory of the same length."""
        if held := _keys_values_of_all([self, other]):
            (keys, values), (other_keys, other_values) = held
            self.held = keys.index_copy(0, rows, other_keys), values.index_copy(0, rows, other_values)


def _keys_values_of_all(caches: Sequence[MemoryCache]) -> list[KeysValues]:
    """Each cache's (keys, values), or [] if none has any."""
    held = [cache.held for cache in caches if cache.held is not None]
    assert len(held) in (0, len(caches)), "cannot merge filled and empty memory caches"
    lengths = {keys.shape[2] for keys, _ in held}
    assert len(lengths) <= 1, f"rows whose memories have {sorted(lengths)} tokens do not join; pad them to one length"
    return held


class DecoderCache:
    """One entry per layer, and the positions of the columns that all of them hold.

    A decoder with cross-attention also has `memory_layers`, with the keys and values of the memory; one with n-gram
    tables has `tokens` (B, n - 1), the last ones of each row, as in `last_tokens`.
    """

    def __init__(
        self,
        layers: Sequence[SelfAttentionCache],
        capacity: int,
        memory_layers: Sequence[MemoryCache] = (),
        tokens: Tensor | None = None,
    ) -> None:
        self.layers = layers
        self.memory_layers = memory_layers
        self.tokens = tokens
        self.capacity = capacity
        self.positions: Positions = range(0)

    @property
    def length(self) -> int:
        """Columns held."""
        return len(self.positions) if isinstance(self.positions, range) else self.positions.shape[1]

    @property
    def keys_and_values(self) -> list[Tensor]:
        """Keys and values of each layer in turn, (B, H_kv, capacity, K) each."""
        return [tensor for layer in self.layers for tensor in (layer.keys, layer.values)]

    @property
    def tensors(self) -> list[Tensor]:
        """Keys and values of each layer in turn, then `tokens` if there are any."""
        return self.keys_and_values if self.tokens is None else [*self.keys_and_values, self.tokens]

    def _positions_of_rows(self, batch_size: int, device: torch.device | None) -> Tensor:
        """Positions (B, T) of the columns."""
        return as_tensor(self.positions, device).expand(batch_size, -1)

    def extend(
        self, positions: Tensor | None, columns: int, *, limit: int | None = None
    ) -> tuple[Positions, Positions]:
        """Append positions, by default continuing each row; return those of this call's queries and of all keys.

        Raises:
            InputError: a position is not below `limit`; the cache is then unchanged.
        """
        held = self.positions
        if positions is None and isinstance(held, range):
            query = range(held.stop, held.stop + columns)
            if limit is not None:
                refuse_beyond(query, limit)
            self.positions = range(held.start, query.stop)
            return query, self.positions
        if positions is None:
            assert isinstance(held, Tensor)
            steps = torch.arange(1, columns + 1, device=held.device)
            positions = held[:, -1:] + steps  # (B, columns)
        if limit is not None:
            refuse_beyond(positions, limit)
        if isinstance(held, range):  # (B, 0) or (B, T): the same for every row until now
            before = torch.arange(held.start, held.stop, device=positions.device)
            held = before.expand(positions.shape[0], -1)
        self.positions = torch.cat((held, positions), dim=1)
        return positions, self.positions

    @contextmanager
    def restored_on_failure(self) -> Iterator[None]:
        """Restore the cache if the block raises."""
        parts = [self, *self.layers, *self.memory_layers]
        before = [dict(vars(part)) for part in parts]
        try:
            yield
        except BaseException:
            for part, attributes in zip(parts, before, strict=True):
                vars(part).update(attributes)
            raise

    def reset(self) -> None:
        """Empty the cache; its memory stays allocated."""
        self.positions = range(0)
        if self.tokens is not None:
            self.tokens = torch.zeros_like(self.tokens)
        for layer in self.layers:
            layer.length = 0
        for memory_layer in self.memory_layers:
            memory_layer.reset()

    def drop(self, columns: int) -> None:
        """Drop the oldest columns. Positions continue, so this is for models with unbounded positions."""
        self.positions = self.positions[columns:] if isinstance(self.positions, range) else self.positions[:, columns:]
        for layer in self.layers:
            layer.drop(columns)

    def rollback(self, columns: Tensor, tokens: Tensor | None = None) -> None:
        """Roll back the last `columns` (B,) of each row; rows end in the same column again.

        Args:
            tokens: the new `tokens`, if the cache has any.
        """
        least = int(columns.min())
        self._cut(self.length - least)
        self.tokens = tokens
        more = columns - least
        for distance in set(more.tolist()) - {0}:
            self._shift((more == distance).nonzero().flatten(), distance, len(columns))

    def _cut(self, length: int) -> None:
        """Drop all but the first columns."""
        self.positions = self.positions[:length] if isinstance(self.positions, range) else self.positions[:, :length]
        for layer in self.layers:
            layer.length = length

    def _shift(self, rows: Tensor, columns: int, batch_size: int) -> None:
        """Drop the last columns of these rows; move the rest to the right, behind padding."""
        positions = self._positions_of_rows(batch_size, rows.device)
        moved = F.pad(positions[rows, : self.length - columns], (columns, 0), value=-1)  # (rows, length)
        self.positions = positions.index_copy(0, rows, moved)
        for layer in self.layers:
            layer.shift(rows, columns)

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if isinstance(self.positions, Tensor):
            self.positions = self.positions.index_select(0, rows)
        if self.tokens is not None:
            self.tokens = self.tokens.index_select(0, rows)
        for layer in self.layers:
            layer.reorder(rows)
        for memory_layer in self.memory_layers:
            memory_layer.reorder(rows)

    def resize(self, capacity: int) -> None:
        """Change the capacity to this many columns, at least those in use."""
        self.capacity = capacity
        for layer in self.layers:
            layer.resize(capacity)

    def append(self, others: Sequence["DecoderCache"], rows: Sequence[int], capacity: int = 0) -> None:
        """Append the rows of other caches, aligned on the right, with padding before shorter ones.

        Args:
            others: caches of the same model.
            rows: the number of rows of each cache, this one first.
            capacity: the least capacity afterwards.
        """
        caches = [self, *others]
        for memory_layers in zip(*(cache.memory_layers for cache in caches), strict=True):
            memory_layers[0].append(memory_layers[1:])
        length, self.capacity = max(cache.length for cache in caches), max(capacity, *(c.capacity for c in caches))
        if not (isinstance(self.positions, range) and all(cache.positions == self.positions for cache in others)):
            device = self.layers[0].keys.device if self.layers else None
            held = [cache._positions_of_rows(n, device) for cache, n in zip(caches, rows, strict=True)]
            self.positions = torch.cat([F.pad(part, (length - part.shape[1], 0), value=-1) for part in held])
        tokens = [cache.tokens for cache in caches if cache.tokens is not None]
        self.tokens = torch.cat(tokens) if tokens else None
        for layers in zip(*(cache.layers for cache in caches), strict=True):
            layers[0].append(layers[1:], length, self.capacity)

    def replace(self, rows: Tensor, other: "DecoderCache") -> None:
        """Overwrite these rows with the rows of `other`, aligned on the right, with padding before them."""
        for memory_layer, other_memory in zip(self.memory_layers, other.memory_layers, strict=True):
            memory_layer.replace(rows, other_memory)
        end, start = self.length, self.length - other.length
        self.positions = self._positions_of_rows(len(self.layers[0].keys), rows.device).clone()
        self.positions[rows] = -1
        self.positions[rows, start:] = as_tensor(other.positions, rows.device).expand(len(rows), -1)
        if self.tokens is not None and other.tokens is not None:
            self.tokens = self.tokens.index_copy(0, rows, other.tokens)
        for layer, other_layer in zip(self.layers, other.layers, strict=True):
            layer.keys[rows, :, start:end] = other_layer.keys[:, :, : other.length]
            layer.values[rows, :, start:end] = other_layer.values[:, :, : other.length]


def by_layer(tensors: Sequence[Tensor]) -> tuple[list[KeysValues], Tensor | None]:
    """Split `DecoderCache.tensors` into keys and values of each layer and the tokens, or None."""
    even = len(tensors) // 2 * 2
    pairs = list(zip(tensors[:even:2], tensors[1:even:2], strict=True))
    return pairs, tensors[-1] if even < len(tensors) else None
