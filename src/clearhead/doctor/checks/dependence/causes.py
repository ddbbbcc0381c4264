"""From what was seen at the guilty place to the name of the fault."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import Causes
from clearhead.doctor.probes.attention import AttentionCall, attentions
from clearhead.doctor.probes.dependency import shape_of
from clearhead.doctor.probes.norms import is_norm
from clearhead.doctor.probes.tracing import ModuleCall

MASK_FAULTS = ("M01", "M02", "M03", "M04", "M05", "M06", "M08", "M10", "M17", "M18", "M19", "M20")
LEAK_FAULTS = (*MASK_FAULTS, "A03", "A04", "A05", "F04", "F05", "N01", "N02", "S02")

RESHAPES = {"view", "reshape", "flatten", "unflatten", "contiguous", "view_as", "reshape_as"}
NORMS = {"layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm", "mean", "std", "var", "pow", "rsqrt"}
PRODUCTS = {"matmul", "__matmul__", "bmm", "baddbmm", "einsum", "mm"}
MIXERS = {"conv1d", "conv2d", "cumsum", "roll", "fft", "rfft", "flip", "pad", "cummax", "logcumsumexp"}
CHOICES = {"topk", "sort", "argsort", "argmax", "kthvalue"}


def leak_causes(module: nn.Module | None, op: ModuleCall | None, ops: Sequence[ModuleCall]) -> Causes:
    """Why a token reaches an earlier position, at the first module that lets it.

    Args:
        module: that module.
        op: the first operation that lets it, of `ops`, all operations of the pass.
    """
    name = op.name if op else ""
    if module is not None and is_norm(module):
        return (("N01", 0.9), ("N02", 0.1))
    if name in RESHAPES:
        return _reshape_causes(op, ops)
    if isinstance(module, nn.Linear):
        return (("F04", 0.8), ("M19", 0.2))
    if isinstance(module, (nn.Conv1d, nn.Conv2d)) or name in MIXERS:
        return (("M19", 0.8), ("M06", 0.2))
    maps = list(attentions(ops))
    nearest = _nearest(maps, op, ops)
    if nearest is None and _was_chosen(op, ops):
        return (("F05", 0.7), ("M19", 0.3))
    if nearest is not None:
        return _mask_causes(nearest, maps)
    if name in NORMS:
        return (("N01", 0.6), ("M19", 0.4))
    if name in ("linear", "einsum"):
        return (("F04", 0.6), ("M19", 0.4))
    return (("M19", 0.6), ("M01", 0.4))


def _was_chosen(op: ModuleCall | None, ops: Sequence[ModuleCall]) -> bool:
    """Whether the guilty operation stands behind a choice of the largest, in the same module."""
    index = next((number for number, call in enumerate(ops) if call is op), -1)
    before = ops[max(0, index - 6) : index + 1] if op else ()
    return any(call.name in CHOICES and op is not None and call.module is op.module for call in before)


def _nearest(maps: Sequence[AttentionCall], op: ModuleCall | None, ops: Sequence[ModuleCall]) -> AttentionCall | None:
    """The attention that the guilty operation is part of: itself, or the one whose weights it takes."""
    index = next((number for number, call in enumerate(ops) if call is op), -1)
    if op is None:
        return None
    if op.name not in PRODUCTS and not any(attention.call is op for attention in maps):
        behind = [other for other in maps if index < other.index <= index + 8 and other.call.module is op.module]
        return next((other for other in behind if other.allowed.triu(1).any()), None)  # what is taken from its scores
    before = [attention for attention in maps if index - 8 <= attention.index <= index]
    return before[-1] if before else None


def _reshape_causes(op: ModuleCall | None, ops: Sequence[ModuleCall]) -> Causes:
    """Heads are split before the attention and merged after it."""
    index = next((number for number, call in enumerate(ops) if call is op), 0)
    last = [attention for attention in attentions(ops) if attention.index < index]
    merged = bool(last) and index - last[-1].index <= 6
    return (("A05", 0.8), ("A04", 0.2)) if merged else (("A04", 0.8), ("A05", 0.2))


def _mask_causes(attention: AttentionCall, everything: Sequence[AttentionCall]) -> Causes:
    square = attention.allowed.shape[0] == attention.allowed.shape[1]
    if attention.axis_is_wrong:
        return (("A03", 0.9), ("M01", 0.1))
    if attention.hidden_later:
        return (("M10", 0.9), ("M01", 0.1))
    if not square:
        return (("S02", 0.6), ("M01", 0.4))
    if attention.ones_added:
        return (("M20", 0.8), ("M18", 0.1), ("M08", 0.1))
    if attention.strength is not None and attention.allowed.all():
        return (("M20", 0.8), ("M08", 0.2)) if attention.strength <= 2 else (("M08", 0.9), ("M20", 0.1))
    shape, number = shape_of(attention.allowed)
    if shape == "mixed" and attention.allowed.diagonal().all() and attention.allowed.tril(-1).any():
        opened = attention.allowed | torch.ones_like(attention.allowed).tril()  # a window may close the far past
        shape, number = shape_of(opened) if not _is_inverse(attention.allowed) else (shape, number)
    if shape == "full":
        others = [other for other in everything if _is_causal(other.allowed)]
        return (("M03", 0.7), ("M01", 0.2), ("S02", 0.1)) if others else (("M01", 0.8), ("M05", 0.1), ("M03", 0.1))
    if shape == "reversed":
        inverse = not bool(attention.allowed.diagonal().any())
        return (("M05", 0.7), ("M04", 0.3)) if inverse else (("M04", 0.7), ("M05", 0.3))
    if shape == "ahead":
        return (("M06", 0.9), ("M16", 0.1)) if number == 1 else (("M06", 0.6), ("M16", 0.2), ("M18", 0.2))
    if shape in ("prefix", "chunks"):
        return (("M18", 0.7), ("M17", 0.2), ("M01", 0.1))
    if _is_inverse(attention.allowed):
        return (("M05", 0.8), ("M04", 0.2))
    if _is_causal(attention.allowed):
        return (("M10", 0.4), ("M19", 0.4), ("A04", 0.2))
    return (("M18", 0.4), ("M05", 0.3), ("M01", 0.3))


def _is_causal(allowed: Tensor) -> bool:
    return allowed.shape[0] == allowed.shape[1] and not bool(allowed.triu(1).any()) and bool(allowed.tril(-1).any())


def _is_inverse(allowed: Tensor) -> bool:
    """Everything but the triangle, or a row opened because nothing was left in it."""
    upper = torch.ones_like(allowed).triu(1)
    return bool(allowed[upper].all()) and float(allowed[~upper].float().mean()) < 0.3
