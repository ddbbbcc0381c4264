"""From what is seen at the guilty operation to the name of the fault."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import Causes
from clearhead.doctor.checks.basics import CHOICES
from clearhead.doctor.checks.parts.layouts import reshape_causes
from clearhead.doctor.probes.attention import AttentionCall, attentions
from clearhead.doctor.probes.dependency import shape_of
from clearhead.doctor.probes.localization import Located
from clearhead.doctor.probes.norms import is_norm
from clearhead.doctor.probes.products import NORMS, RESHAPING

MASK_FAULTS = ("M01", "M02", "M03", "M04", "M05", "M06", "M08", "M10", "M17", "M18", "M19", "M20")
LEAK_FAULTS = (*MASK_FAULTS, "A03", "A04", "A05", "F04", "F05", "N01", "N02", "S02")

RESHAPES = RESHAPING | {"contiguous", "view_as", "reshape_as"}
STATISTICS = NORMS | {"batch_norm", "instance_norm", "mean", "std", "var", "pow"}
MIXERS = {"conv1d", "conv2d", "cumsum", "roll", "fft", "rfft", "flip", "pad", "cummax", "logcumsumexp"}
NEAR = 8  # operations that an attention has


def leak_causes(leak: Located, *, is_mask: bool, has_source: bool) -> Causes:
    """Why a token reaches an earlier position, at the first module and operation that let it.

    Args:
        is_mask: nothing leaks any more where every attention is masked from outside.
        has_source: the model reads one; else fewer keys than queries were mixed of the tokens.
    """
    ops, index = leak.operations, leak.op or 0
    module, name = leak.call.module if leak.call else None, leak.where.op
    maps = list(attentions(ops))
    if module is not None and is_norm(module):
        return (("N01", 0.9), ("N02", 0.1))
    if name in RESHAPES:
        return reshape_causes(index, maps)
    open_ = (a for a in maps if a.allowed.triu(1).any() or a.hidden_later or a.axis_is_wrong)
    nearest = next((attention for attention in open_ if attention.index >= index - NEAR), None)
    if nearest is not None and (is_mask or nearest.axis_is_wrong):
        return _mask_causes(nearest, maps, has_source)
    if is_mask:
        return (("M01", 0.6), ("M19", 0.4))
    if isinstance(module, (nn.Conv1d, nn.Conv2d)) or name in MIXERS:
        return (("M19", 0.8), ("M06", 0.2))
    if any(call.name in CHOICES and call.module is ops[index].module for call in ops[max(0, index - NEAR) : index + 1]):
        return (("F05", 0.7), ("M19", 0.3))
    if name in STATISTICS:
        return (("N01", 0.6), ("M19", 0.4))
    if name == "einsum" and nearest is not None:  # in a layout that no mask from outside fits
        return _mask_causes(nearest, maps, has_source)
    if isinstance(module, nn.Linear) or name in ("linear", "einsum"):
        return (("F04", 0.7), ("M19", 0.3))
    return (("M19", 0.6), ("M01", 0.4))


def _mask_causes(attention: AttentionCall, everything: Sequence[AttentionCall], has_source: bool) -> Causes:
    allowed = attention.allowed
    if attention.axis_is_wrong:
        return (("A03", 0.9), ("M01", 0.1))
    if attention.hidden_later:
        return (("M10", 0.9), ("M01", 0.1))
    if allowed.shape[0] != allowed.shape[1]:
        return (("S02", 0.6), ("M01", 0.4)) if has_source else (("F04", 0.7), ("M19", 0.3))
    if attention.ones_added:
        return (("M20", 0.8), ("M18", 0.1), ("M08", 0.1))
    if attention.strength is not None and allowed.all():
        return (("M20", 0.8), ("M08", 0.2)) if attention.strength <= 2 else (("M08", 0.9), ("M20", 0.1))
    inverse = _is_inverse(allowed)
    shape, number = shape_of(allowed)
    if shape == "mixed" and not inverse and allowed.diagonal().all() and allowed.tril(-1).any():
        shape, number = shape_of(allowed | torch.ones_like(allowed).tril())  # a window may close the far past
    if shape == "full":
        others = any(_is_causal(other.allowed) for other in everything)
        return (("M03", 0.7), ("M01", 0.2), ("S02", 0.1)) if others else (("M01", 0.8), ("M05", 0.1), ("M03", 0.1))
    if shape == "reversed":
        return (("M04", 0.7), ("M05", 0.3)) if allowed.diagonal().any() else (("M05", 0.7), ("M04", 0.3))
    if shape == "ahead":
        return (("M06", 0.9), ("M16", 0.1)) if number == 1 else (("M06", 0.6), ("M16", 0.2), ("M18", 0.2))
    if shape in ("prefix", "chunks"):
        return (("M18", 0.7), ("M17", 0.2), ("M01", 0.1))
    if inverse:
        return (("M05", 0.8), ("M04", 0.2))
    if _is_causal(allowed):
        return (("M10", 0.4), ("M19", 0.4), ("A04", 0.2))
    return (("M18", 0.4), ("M05", 0.3), ("M01", 0.3))


def _is_causal(allowed: Tensor) -> bool:
    return allowed.shape[0] == allowed.shape[1] and not bool(allowed.triu(1).any()) and bool(allowed.tril(-1).any())


def _is_inverse(allowed: Tensor) -> bool:
    """Whether all of the future is allowed and next to nothing else: a row that would be empty may have been opened."""
    upper = torch.ones_like(allowed).triu(1)
    return bool(allowed[upper].all()) and float(allowed[~upper].float().mean()) < 0.3
