"""Which query may attend to which key. Masks are made here, from positions.

Fused and eager attention and the native translator take these masks. The native decoder takes none: it compares
positions itself.

`True` means *may attend*, everywhere. A mask compares the positions of queries with the positions of keys, so a
cache, a sliding window, chunked prefill, padding and packed documents are one piece of code.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

# Where tokens stand in their own sequence: a range shared by all rows, or an int64 tensor (B, T), -1 for padding.
Positions = range | Tensor
Mask = Tensor | Literal["causal"] | None


def attention_mask(
    query: Positions,
    key: Positions,
    *,
    causal: bool,
    window: int | None = None,
    documents: Tensor | None = None,
    tree_mask: Tensor | None = None,
    device: torch.device | None = None,
) -> Mask:
    """The cheapest form of the rule "this query may see that key".

    Args:
        query, key: positions of the queries (T_q) and of the keys (T_k).
        causal: a query sees no key that stands after it.
        window: a query sees at most this many keys, the last one its own.
        documents: (B, T) number of the document of each token; attention stays inside a document (T_q = T_k = T).
        tree_mask: (B, T_q, T_k) an extra mask, ANDed with the positional one.
        device: where a tensor is made when both positions are ranges.

    Returns:
        None (everything is allowed), "causal" (for the fused kernel; only where T_q = T_k), or a boolean tensor
        (T_q, T_k) or (B, 1, T_q, T_k).
    """
    assert window is None or causal, "a window looks back from the query, so it needs a causal mask"
    if isinstance(query, range) and isinstance(key, range) and documents is None and tree_mask is None:
        farthest = query.stop - 1 - key.start  # the longest look back that a query could take
        if not causal or (query.start >= key.stop - 1 and (window is None or farthest < window)):
            return None
        if query == key and (window is None or farthest < window):
            return "causal"
    allowed = _compare(_column(query, device), _row(key, device), causal, window)  # (T_q, T_k) or (B, T_q, T_k)
    if documents is not None:
        allowed = allowed & (documents[:, :, None] == documents[:, None, :])
    if tree_mask is not None:
        allowed = allowed & tree_mask
    return allowed if allowed.dim() == 2 else allowed.unsqueeze(1)  # every head sees the same mask


def check_causal(mask: str, T_q: int, T_k: int) -> None:
    """Assert that the name is "causal" and that T_q == T_k."""
    assert mask == "causal", f"there is no mask '{mask}', only 'causal'"
    assert T_q == T_k, f"a causal mask needs as many queries as keys, not {T_q} queries and {T_k} keys"


def _compare(query: Tensor, key: Tensor, causal: bool, window: int | None) -> Tensor:
    allowed = key >= 0
    if causal:
        allowed = allowed & (key <= query)
    if window is not None:
        allowed = allowed & (key > query - window)
    return allowed.expand(*allowed.shape[:-2], query.shape[-2], key.shape[-1])


def _column(positions: Positions, device: torch.device | None) -> Tensor:
    return as_tensor(positions, device).unsqueeze(-1)  # (..., T, 1)


def _row(positions: Positions, device: torch.device | None) -> Tensor:
    return as_tensor(positions, device).unsqueeze(-2)  # (..., 1, T)


def as_tensor(positions: Positions, device: torch.device | None = None) -> Tensor:
    """Positions as an int64 tensor: (T,) from a range, otherwise as they are."""
    if isinstance(positions, range):
        return torch.arange(positions.start, positions.stop, device=device)
    return positions


def positions_from_lengths(lengths: Tensor, width: int, side: Literal["left", "right"] = "right") -> Tensor:
    """Positions (B, width) of rows that hold `lengths` (B,) real tokens each, -1 where there is padding."""
    columns = torch.arange(width, device=lengths.device)
    if side == "left":
        return (columns - (width - lengths)[:, None]).clamp(min=-1)
    return columns.where(columns < lengths[:, None], -1)


def positions_of(ids: Tensor, pad_id: int | None, *, causal: bool = False, start_id: int | None = None) -> Positions:
    """Positions of rows (B, T) padded with `pad_id` on either side; a range where no row needs its own.

    Args:
        causal: the mask is causal, so padding on the right needs no positions: no real token attends to what follows.
        start_id: the start token. If it equals pad_id (T5), the last one before the text counts as a token.
    """
    if pad_id is None:
        return range(ids.shape[1])
    padding = ids == pad_id
    if start_id == pad_id:
        padding = padding & ~_starts(padding)
    relevant = padding[:, :1] if causal else padding
    if not torch.compiler.is_compiling() and not bool(relevant.any()):  # traced values are unknown: build the tensor
        return range(ids.shape[1])
    return (~padding).long().cumsum(dim=1).sub(1).masked_fill(padding, -1)


def _starts(padding: Tensor) -> Tensor:
    """(B, T): the last of what looks like padding before a row's first token, or at the end of a row without any."""
    behind = F.pad(padding[:, 1:], (0, 1), value=False)  # whether padding follows
    return padding.cumprod(dim=1).bool() & ~behind


def refuse_exchanged(mask: Mask, memory_mask: Mask, T: int, T_src: int, *, cached: bool = False) -> None:
    """Two masks meet in a decoder's layer: `mask` hides the future of T targets, `memory_mask` the source's padding.

    Their shapes may be the same; what they mean tells them apart. A target sees itself and nothing later; all targets
    of a sentence see the same part of the source.

    Args:
        cached: keys of earlier calls stand before those of the T targets.
    """
    if torch.compiler.is_compiling():
        return  # a graph is being traced, or exported: its masks have no values yet
    swapped = "; were `mask` (of the target's self-attention) and `memory_mask` (of the source's padding) exchanged?"
    assert not isinstance(memory_mask, str), f"a causal mask has no place in cross-attention{swapped}"
    if isinstance(memory_mask, Tensor):
        keys = memory_mask.shape[-1]
        assert keys == T_src, f"cross-attention to {T_src} source tokens got a mask of {keys} keys{swapped}"
        expanded = memory_mask.shape[-2] == 1 or memory_mask.stride(-2) == 0
        alike = expanded or bool((memory_mask == memory_mask[..., :1, :]).all())
        assert alike, f"in cross-attention, targets of one sentence see different parts of the source{swapped}"
    if isinstance(mask, Tensor):
        queries, keys = mask.shape[-2:]
        fits = queries == T and (keys >= T if cached else keys == T)
        assert fits, f"self-attention of {T} targets got a mask of {queries} queries and {keys} keys{swapped}"
        own = mask[..., -T:]  # (..., T, T)
        assert not own.triu(1).any(), f"the decoder's self-attention sees the future{swapped}"
        blind = mask.any(-1) & ~own.diagonal(dim1=-2, dim2=-1)  # padding sees nothing at all
        assert not blind.any(), f"in the decoder's self-attention, a target does not see itself{swapped}"


# Converters to and from PyTorch's inverted and additive masks.


def forbidden_from_allowed(allowed: Tensor) -> Tensor:
    """To `nn.MultiheadAttention`'s polarity, where True means *must not attend*."""
    return ~allowed


def allowed_from_forbidden(forbidden: Tensor) -> Tensor:
    """From `nn.MultiheadAttention`'s polarity, where True means *must not attend*."""
    return ~forbidden


def additive_from_allowed(allowed: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """To a mask that is added to the scores: 0 where attention is allowed, -inf elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, -torch.inf)


def allowed_from_additive(additive: Tensor) -> Tensor:
    """From a mask that is added to the scores; finfo.min also counts as -inf, as in transformers."""
    return additive > torch.finfo(additive.dtype).min
