"""Masks that are imposed on attention from outside: what passes in spite of them takes another way."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearhead.doctor.probes.attention import FUSED, WHOLE


class causally_masked(TorchFunctionMode):  # noqa: N801 - used as a context manager
    """Every softmax over scores (..., T_q, T_k), and every attention of torch, looks back only."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "softmax" and args and isinstance(args[0], Tensor) and args[0].dim() >= 3:
            args = (_masked(args[0], *args[0].shape[-2:]), *args[1:])
        elif name == FUSED and len(args) >= 3:
            options = dict(zip(("attn_mask", "dropout_p", "is_causal"), args[3:], strict=False)) | kwargs
            mask, T_q, T_k = options.get("attn_mask"), args[0].shape[-2], args[1].shape[-2]
            args, kwargs = args[:3], options | {"attn_mask": _as_mask(args[0], mask, T_q, T_k), "is_causal": False}
        elif name == WHOLE and len(args) >= 3:
            mask = kwargs.get("attn_mask")  # in bool, True is hidden
            mask = ~mask if mask is not None and mask.dtype == torch.bool else mask
            mask = _as_mask(args[0], mask, len(args[0]), len(args[1]))
            kwargs |= {"attn_mask": mask, "is_causal": False}
        return func(*args, **kwargs)


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


def _masked(scores: Tensor, T_q: int, T_k: int) -> Tensor:
    """Scores whose last queries are those of the last keys; as they are where they cannot be those of one row."""
    if not 1 < T_q <= T_k:
        return scores
    future = torch.ones(T_q, T_k, dtype=torch.bool, device=scores.device).triu(1 + T_k - T_q)
    return scores.masked_fill(future, float("-inf"))


def _as_mask(query: Tensor, mask: Tensor | None, T_q: int, T_k: int) -> Tensor:
    """The mask that is added to the scores, of a mask that is added or True where a key may be seen."""
    added = query.new_zeros(T_q, T_k)
    if mask is not None:
        added = added + (
            added.new_zeros(mask.shape).masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else mask
        )
    return _masked(added, T_q, T_k)
