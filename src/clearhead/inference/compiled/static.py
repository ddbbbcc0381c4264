"""One step of a decoder as a function of tensors whose shapes never change, so that it can be compiled once."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from clearhead.inference.compiled.products import Packed, Products
from clearhead.models import CausalLM
from clearhead.parts import DecoderCache, SelfAttentionCache
from clearhead.parts.cache import KeysValues, Project
from clearhead.parts.masks import Positions


class StaticLayer(SelfAttentionCache):
    """A layer's room: new keys and values go into the column that a tensor names; all of the room comes back."""

    def __init__(self, keys: Tensor, values: Tensor, column: Tensor) -> None:
        self.keys, self.values, self.column = keys, values, column  # (B, H_kv, capacity, K) twice, (1,)

    def update(self, project: Project) -> KeysValues:
        keys, values = project()  # (B, H_kv, 1, K) each
        self.keys.index_copy_(2, self.column, keys)
        self.values.index_copy_(2, self.column, values)
        return self.keys, self.values


class StaticCache(DecoderCache):
    """The room of a `DecoderCache`, seen whole.

    Column c of a row stands at position c - offset, and is padding where that is negative. Columns that are not
    written yet stand after the query, so what hides the future hides them.
    """

    def __init__(self, room: Sequence[Tensor], column: Tensor, offsets: Tensor) -> None:
        pairs = zip(room[::2], room[1::2], strict=True)
        super().__init__([StaticLayer(keys, values, column) for keys, values in pairs], room[0].shape[2])
        self.column, self.offsets = column, offsets  # (1,), (B,)

    def extend(self, positions: Tensor | None, columns: int) -> tuple[Positions, Positions]:
        assert positions is None, "offsets say where rows stand"
        assert columns == 1, f"a static cache takes one column at a time, not {columns}"
        all_columns = torch.arange(self.capacity, device=self.column.device)
        before = self.offsets[:, None]  # (B, 1)
        return self.column - before, (all_columns - before).clamp(min=-1)  # (B, 1), (B, capacity)


class Step(nn.Module):
    """ids (B,), column (1,), offsets (B,), keys and values of each layer in turn -> logits (B, V)."""

    def __init__(self, model: CausalLM, packed: Mapping[str, Packed]) -> None:
        """
        Args:
            model: whose step it is.
            packed: what takes the place of the parameters of these names in products; then B is 1.
        """
        super().__init__()
        self.model = model
        self.names, self.packed = list(packed), nn.ModuleList(packed.values())

    def forward(self, ids: Tensor, column: Tensor, offsets: Tensor, *room: Tensor) -> Tensor:
        matrices = map(self.model.get_parameter, self.names)  # found anew, because while traced they are others
        with Products(dict(zip(matrices, self.packed, strict=True))):
            logits: Tensor = self.model(ids[:, None], cache=StaticCache(room, column, offsets))  # (B, 1, V)
        return logits[:, 0]


def state_of(cache: DecoderCache, rows: int) -> list[Tensor]:
    """What `Step` takes after the ids, of a cache with room for one more column."""
    device = cache.layers[0].keys.device
    if isinstance(cache.positions, range):
        offsets = torch.full((rows,), -cache.positions.start, device=device)
    else:
        offsets = cache.length - 1 - cache.positions[:, -1]
    column = torch.tensor([cache.length], device=device)
    return [column, offsets, *(held for layer in cache.layers for held in (layer.keys, layer.values))]


def count_column(cache: DecoderCache) -> None:
    """The step has written one more column into the cache's room."""
    cache.extend(None, 1)
    for layer in cache.layers:
        layer.length += 1
