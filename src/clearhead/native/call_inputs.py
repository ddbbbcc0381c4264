"""Fill in a native call: positions, mask, bias, rotary, and the pointers to the cache."""

import torch
from torch import Tensor

from clearhead.native.boundary import pointers_to
from clearhead.native.structures import Call
from clearhead.parts import DecoderCache, SlotRows
from clearhead.parts.masks import Mask, Positions
from clearhead.parts.positions import PositionEncoding, RotaryEmbedding

CPU = torch.device("cpu")  # regardless of torch's default device


def set_cache(call: Call, cache: DecoderCache, places: int) -> list[Tensor]:
    """Set the pointers to the keys and values of each layer; returns tensors to keep alive. See `require_cache`.

    Args:
        cache: already extended by what the call reads.
        places: of each text in the call.
    """
    room = cache.keys_and_values
    call.cached, call.capacity, call.caches = len(room[0]), room[0].shape[2], pointers_to(room)
    call.length = cache.length - places
    if not isinstance(cache, SlotRows):
        return []
    counts = [length - before for length, before in zip(cache.lengths, cache.before, strict=True)]
    held = [torch.tensor(numbers, dtype=torch.int64, device=CPU) for numbers in (cache.slots, cache.before, counts)]
    call.slots, call.lengths, call.counts = (numbers.data_ptr() for numbers in held)
    return held


def set_positions(
    call: Call, kind: PositionEncoding, query: Positions, key: Positions, mask: Mask, nothing: Tensor
) -> list[Tensor]:
    """Set positions, mask, bias and rotary in `call`; returns tensors to keep alive.

    Args:
        call: for P tokens of each of B texts.
        kind: the model's positions.
        query, key: positions of the P tokens, and of all T columns of the cache with them.
        mask: (P, T) or (B, 1, P, T); None: a token sees those before it, and itself.
        nothing: zeros (1, P, D), of the type of the call's numbers.
    """
    rotary, bias = kind.rotate(query, CPU), kind.bias(query, key, CPU)
    held = [kind.add(nothing, query)]  # (1 or B, P, D)
    if held[0] is not nothing:
        call.added, call.added_stride, call.added_column = held[0].data_ptr(), _row(held[0]), nothing.shape[2]
    if isinstance(mask, Tensor):
        held.append(mask.reshape(-1, *mask.shape[-2:]).contiguous())  # (1 or B, P, T)
        call.mask, call.mask_stride = held[-1].data_ptr(), _row(held[-1])
    if bias is not None:
        held.append(bias.to(nothing.dtype).reshape(-1, *bias.shape[-3:]).contiguous())  # (1 or B, H, P, T)
        call.bias, call.bias_stride = held[-1].data_ptr(), _row(held[-1])
    if rotary is not None:
        assert isinstance(rotary, RotaryEmbedding), "native code rotates pairs"
        held += [angles.to(nothing.dtype).reshape(-1, *angles.shape[-2:]) for angles in (rotary.cos, rotary.sin)]
        call.cosines, call.sines = held[-2].data_ptr(), held[-1].data_ptr()  # (1 or B, P, R)
        call.rotary_half, call.rotary_stride = rotary.cos.shape[-1] // 2, _row(held[-1])
    return held


def _row(tensor: Tensor) -> int:
    """Stride between rows of the batch; 0 where all share one."""
    return tensor.stride(0) if len(tensor) > 1 else 0
