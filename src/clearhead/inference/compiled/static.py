"""One step of a decoder as a function of tensors alone, so that it can be compiled once."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from clearhead.inference.compiled.products import Packed, Products
from clearhead.models import CausalLM
from clearhead.parts import DecoderCache, SelfAttentionCache
from clearhead.parts.cache import KeysValues, Project, by_layer
from clearhead.parts.masks import Positions


class StaticLayer(SelfAttentionCache):
    """A layer's room: new keys and values go into the last of the columns; those of all the columns come back."""

    def __init__(self, keys: Tensor, values: Tensor, columns: Tensor) -> None:
        self.keys, self.values, self.columns = keys, values, columns  # (B, H_kv, capacity, K) twice, (T_k,)

    def update(self, project: Project) -> KeysValues:
        keys, values = project()  # (B, H_kv, 1, K) each
        self.keys.index_copy_(2, self.columns[-1:], keys)
        self.values.index_copy_(2, self.columns[-1:], values)
        end = self.columns.shape[0]
        return self.keys[:, :, :end], self.values[:, :, :end]


class StaticCache(DecoderCache):
    """The room of a `DecoderCache`, and its columns that are in use: 0, 1, ... and the one of this step.

    Column c of a row stands at position c - offset, and is padding where that is negative.
    """

    def __init__(self, room: Sequence[Tensor], columns: Tensor, offsets: Tensor) -> None:
        pairs, tokens = by_layer(room)
        super().__init__([StaticLayer(*pair, columns) for pair in pairs], room[0].shape[2], tokens=tokens)
        self.columns, self.offsets = columns, offsets  # (T_k,), (B,)

    def extend(self, positions: Tensor | None, columns: int) -> tuple[Positions, Positions]:
        assert positions is None, "offsets say where rows stand"
        assert columns == 1, f"a static cache takes one column at a time, not {columns}"
        key = (self.columns - self.offsets[:, None]).clamp(min=-1)  # (B, T_k)
        return key[:, -1:], key


class Step(nn.Module):
    """ids (B,), columns (T_k,), offsets (B,), keys and values of each layer in turn -> logits (B, V).

    A cache that holds the last tokens of its rows (B, n - 1) gives them at the end, and is returned the new ones.
    """

    def __init__(self, model: CausalLM, packed: Mapping[str, Packed]) -> None:
        """
        Args:
            model: whose step it is.
            packed: what takes the place of the parameters of these names in products; then B is 1.
        """
        super().__init__()
        self.model = model
        self.names, self.packed = list(packed), nn.ModuleList(packed.values())

    def forward(self, ids: Tensor, columns: Tensor, offsets: Tensor, *room: Tensor) -> tuple[Tensor, ...]:
        matrices = map(self.model.get_parameter, self.names)  # found anew, because while traced they are others
        with Products(dict(zip(matrices, self.packed, strict=True))):
            cache = StaticCache(room, columns, offsets)
            logits: Tensor = self.model(ids[:, None], cache=cache)  # (B, 1, V)
        return (logits[:, 0],) if cache.tokens is None else (logits[:, 0], cache.tokens)


def state_of(cache: DecoderCache, rows: int) -> list[Tensor]:
    """What `Step` takes after the ids, of a cache with room for one more column."""
    device = cache.layers[0].keys.device
    if isinstance(cache.positions, range):
        offsets = torch.full((rows,), -cache.positions.start, device=device)
    else:
        offsets = cache.length - 1 - cache.positions[:, -1]
    return [torch.arange(cache.length + 1, device=device), offsets, *cache.tensors]


def count_column(cache: DecoderCache, *tokens: Tensor) -> None:
    """The step has written one more column into the cache's room, and returned these last tokens, if it has any."""
    cache.extend(None, 1)
    if tokens:
        (cache.tokens,) = tokens
    for layer in cache.layers:
        layer.length += 1
