"""Masks that are imposed on attention from outside: what passes in spite of them takes another way."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearhead.doctor.probes.attention import FUSED, WHOLE

Rule = Callable[[int, int], Tensor | None]  # (T_q, T_k) -> True (T_q, T_k) where nothing may be seen; None: no such row


class masked_by(TorchFunctionMode):  # noqa: N801 - used as a context manager
    """Every softmax over scores (..., T_q, T_k), and every attention of torch, hides what a rule says."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "softmax" and args and isinstance(args[0], Tensor) and args[0].dim() >= 3:
            args = (_masked(args[0], self.rule), *args[1:])
        elif name == FUSED and len(args) >= 3:
            options = dict(zip(("attn_mask", "dropout_p", "is_causal"), args[3:], strict=False)) | kwargs
            mask, T_q, T_k = options.get("attn_mask"), args[0].shape[-2], args[1].shape[-2]
            triangle = torch.ones(T_q, T_k, dtype=torch.bool, device=args[0].device).tril()
            mask = triangle if options.get("is_causal") else mask
            mask = self._as_mask(args[0], mask, T_q, T_k)
            args, kwargs = args[:3], options | {"attn_mask": mask, "is_causal": False}
        elif name == WHOLE and len(args) >= 3:
            mask = kwargs.get("attn_mask")  # in bool, True is hidden
            mask = ~mask if mask is not None and mask.dtype == torch.bool else mask
            mask = self._as_mask(args[0], mask, len(args[0]), len(args[1]))
            kwargs |= {"attn_mask": mask, "is_causal": False}
        return func(*args, **kwargs)

    def _as_mask(self, query: Tensor, mask: Tensor | None, T_q: int, T_k: int) -> Tensor:
        """The mask that is added to the scores, of a mask that is added or True where a key may be seen."""
        added = query.new_zeros(T_q, T_k)
        if mask is not None:
            added = added + (
                added.new_zeros(mask.shape).masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else mask
            )
        return _masked(added, self.rule)


def causally_masked() -> masked_by:
    """Every attention looks back only."""
    return masked_by(_future)


class _of_nothing(TorchFunctionMode):  # noqa: N801 - used as a context manager
    """Every weight of an attention is zero."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        if name == FUSED or (name == "softmax" and output.dim() >= 3):
            return torch.zeros_like(output)
        return (torch.zeros_like(output[0]), *output[1:]) if name == WHOLE else output


@contextmanager
def unattended(modules: Iterable[nn.Module]) -> Iterator[None]:
    """What attends in these modules reads nothing meanwhile."""
    with ExitStack() as undo:
        call_within(_of_nothing, modules, undo)
        yield


def call_within(
    context: Callable[[], AbstractContextManager[Any]], modules: Iterable[nn.Module], undo: ExitStack
) -> None:
    """Let these modules be called within a context until `undo` is closed."""
    for module in modules:
        undo.callback(setattr, module, "forward", module.forward)
        module.forward = _called_within(context, module.forward)


def _called_within(context: Callable[[], AbstractContextManager[Any]], call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with context():
            return call(*args, **kwargs)

    return forward


def _masked(scores: Tensor, rule: Rule) -> Tensor:
    """Scores of which some are hidden."""
    hidden = rule(*scores.shape[-2:])
    return scores if hidden is None else scores.masked_fill(hidden.to(scores.device), float("-inf"))


def _future(T_q: int, T_k: int) -> Tensor | None:
    """What is later, where the last queries are those of the last keys; nothing where they cannot be of one row."""
    return torch.ones(T_q, T_k, dtype=torch.bool).triu(1 + T_k - T_q) if 1 < T_q <= T_k else None
