"""Keys and values kept between calls, so that a token is projected once. Passed explicitly, one entry per layer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from clearhead.parts.masks import Positions
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

    def resize(self, capacity: int) -> None:
        """Change the capacity to this many columns."""
        used = slice(self.length)
        for name, held in (("keys", self.keys), ("values", self.values)):
            room = held.new_zeros(*held.shape[:2], capacity, held.shape[3])  # (B, H_kv, capacity, K)
            room[:, :, used] = held[:, :, used]
            setattr(self, name, room)

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; in place, copying used columns only, unless rows are added."""
        if len(rows) > len(self.keys):
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
            return
        used = slice(self.length)
        for held in (self.keys, self.values):
            held[: len(rows), :, used] = held[:, :, used].index_select(0, rows)
        self.keys, self.values = self.keys[: len(rows)], self.values[: len(rows)]


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

    def advance(self, columns: int) -> None:
        """Count columns that native code has written into every layer."""
        for layer in self.layers:
            layer.length += columns

    def reset(self) -> None:
        """Empty the cache; its memory stays allocated."""
        self.positions = range(0)
        if self.tokens is not None:
            self.tokens = torch.zeros_like(self.tokens)
        for layer in self.layers:
            layer.length = 0
        for memory_layer in self.memory_layers:
            memory_layer.reset()

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


def by_layer(tensors: Sequence[Tensor]) -> tuple[list[KeysValues], Tensor | None]:
    """Split `DecoderCache.tensors` into keys and values of each layer and the tokens, or None."""
    even = len(tensors) // 2 * 2
    pairs = list(zip(tensors[:even:2], tensors[1:even:2], strict=True))
    return pairs, tensors[-1] if even < len(tensors) else None
