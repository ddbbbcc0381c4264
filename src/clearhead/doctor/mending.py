"""Faults that would hide others, mended in the copies under examination."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor.probes.masking import call_within, causally_masked
from clearhead.doctor.probes.norms import is_leaf_norm
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.state_guard import seeded
from clearhead.doctor.subject import Subject

MIXING_NORMS = ("N01", "N02")
RANDOM = ("T09", "A08")


def mended(subject: Subject, check: str, findings: Sequence[Finding], undo: ExitStack) -> Subject | None:
    """The subject without what a check found; None if that cannot be mended. Closing `undo` takes the mend back.

    What is random draws the same numbers in every call; a model that looks ahead is masked from outside. Norms over
    time or over the batch become norms over the width, and torch's attention reads the other axis as time. A model that
    writes over its inputs gets copies. Dropout in evaluation is taken out from the start.
    """
    if check == "deterministic" and any(fault.id in RANDOM for fault in findings):
        return replace(_within(subject, partial(seeded, subject.seed), undo), is_seeded=True)
    if check == "memory" and any(fault.id == "D18" for fault in findings):
        for copy in (subject.model, subject.fresh):
            undo.callback(copy.register_forward_pre_hook(_with_copies, with_kwargs=True).remove)
        return replace(subject)
    if check == "dependencies" and subject.kind == "causal" and subject.matrix.alive.triu(1).any():
        with causally_masked():
            fits = subject.run(subject.inputs(2)).isfinite().all()  # not every layout of scores can be masked so
        if not fits:
            return None
        masked = _within(subject, causally_masked, undo)
        vars(masked)["assumed_kind"] = subject.assumed_kind  # a mask of ours suggests nothing
        return masked
    modules = [module for copy in (subject.model, subject.fresh) for module in copy.modules()]
    attentions = [module for module in modules if isinstance(module, nn.MultiheadAttention)]
    if attentions and any((fault.id, fault.where.class_name) == ("A10", "MultiheadAttention") for fault in findings):
        for attention in attentions:
            undo.callback(setattr, attention, "batch_first", attention.batch_first)
            attention.batch_first = not attention.batch_first
        return replace(subject)
    guilty = {fault.where.class_name for fault in findings if fault.id in MIXING_NORMS}
    norms = [module for module in modules if type(module).__name__ in guilty and is_leaf_norm(module)]
    for norm in norms:
        undo.callback(setattr, norm, "forward", norm.forward)
        norm.forward = _over_width(norm, subject.convention.time_first, subject.calling.T)
    return replace(subject) if norms else None


def _with_copies(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call, with copies of the tensors that it is given directly."""
    copies = {name: value.clone() if isinstance(value, Tensor) else value for name, value in named.items()}
    return tuple(value.clone() if isinstance(value, Tensor) else value for value in args), copies


def _within(subject: Subject, context: Callable[[], AbstractContextManager[Any]], undo: ExitStack) -> Subject:
    """The subject whose copies are called within a context."""
    call_within(context, (subject.model, subject.fresh), undo)
    return replace(subject)


def _over_width(norm: nn.Module, time_first: bool, T: int) -> Callable[[Tensor], Tensor]:
    """A norm of each token by itself, of hidden states (B, T, D), or (B, D, T) as convolutions have them.

    Its weights keep an effect: by themselves if there is one for each channel, else by their mean.
    """
    weights = list(norm.parameters())

    def forward(x: Tensor, *_: object) -> Tensor:
        axis = 1 if x.dim() == 3 and x.shape[-1] == T != x.shape[1] and not time_first else -1
        normed = F.layer_norm(x.movedim(axis, -1), (x.shape[axis],))
        for weight in weights:
            normed = normed + (weight.flatten() if weight.numel() == x.shape[axis] else weight.mean())
        return normed.movedim(-1, axis)

    return forward
