"""Fill in a native call: positions, mask, bias, rotary, and the pointers to the cache."""

import torch
from torch import Tensor

from clearhead.native.boundary import pointers_to
from clearhead.native.structures import Call
from clearhead.parts import DecoderCache
from clearhead.parts.masks import Mask, Positions
from clearhead.parts.positions import PositionEncoding, RotaryEmbedding

CPU = torch.device("cpu")  # regardless of torch's default device


def set_cache(call: Call, cache: DecoderCache) -> None:
    """Set the pointers to the keys and values of each layer; call `require_cache` first."""
    room = cache.keys_and_values
    call.length, call.capacity, call.caches = cache.length, room[0].shape[2], pointers_to(room)


def set_positions(
    call: Call, kind: PositionEncoding, query: Positions, key: Positions, mask: Mask, nothing: Tensor
) -> list[Tensor]:
    """Set positions, mask, bias and rotary in `call`; returns tensors to keep alive.

    Args:
        call: for P tokens of each of B texts.
        kind: the model's positions.
        query, key: positions of the P tokens, and of all T columns of the cache with them.
        mask: (P, T) or (B, 1, P, T); None: the native code compares the positions itself.
        nothing: zeros (1, P, D), of the type of the call's numbers.
    """
    rotary, bias = kind.rotate(query, CPU), kind.bias(query, key, CPU)
    held = [kind.add(nothing, query)]  # (1 or B, P, D)
    if held[0] is not nothing:
        call.added, call.added_stride, call.added_column = held[0].data_ptr(), _row(held[0]), nothing.shape[2]
    if isinstance(key, Tensor) and mask is None:
        held.append(key.contiguous())  # (B, T)
        call.positions = held[-1].data_ptr()
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
