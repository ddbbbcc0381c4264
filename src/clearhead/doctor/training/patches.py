"""Calls of torch that a training makes are passed on to listeners, and put back afterwards."""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from clearhead.doctor.training.forwards import Forwards
from clearhead.doctor.training.gradients import Gradients
from clearhead.doctor.training.stepping import Stepping

Function = Callable[..., object]


def install(stack: ExitStack, forwards: Forwards, gradients: Gradients, stepping: Stepping) -> None:
    """Let the listeners hear every call, until the stack is closed."""
    for handle in (
        register_module_forward_pre_hook(forwards.begin),
        register_module_forward_hook(forwards.end, with_kwargs=True, always_call=True),
        register_optimizer_step_pre_hook(stepping.begin),
        register_optimizer_step_post_hook(stepping.end),
    ):
        stack.callback(handle.remove)
    replacements: dict[Function, Function] = {
        torch.autograd.backward: gradients.backward,
        clip_grad_norm_: functools.partial(gradients.clip, "max_norm"),
        clip_grad_value_: functools.partial(gradients.clip, "clip_value"),
    }
    around = {old: _around(old, new) for old, new in replacements.items()}
    _exchange(around)
    stack.callback(_exchange, {new: old for old, new in around.items()})  # also in modules imported in between
    for method in ("scale", "unscale_", "step", "update"):
        _replace(stack, GradScaler, method, gradients.scale)
    _replace(stack, Optimizer, "__init__", stepping.create)
    _replace(stack, LRScheduler, "_initial_step", stepping.schedule)
    for kind in (LRScheduler, *_below(LRScheduler)):
        if "step" in vars(kind):
            _replace(stack, kind, "step", stepping.schedule)


def listen_to(stack: ExitStack, optimizer: object, stepping: Stepping) -> None:
    """Hear the steps of an optimizer that is not torch's."""

    def step(old: Function, *args: object, **kwargs: object) -> object:
        stepping.begin(optimizer, (), {})
        result = old(*args, **kwargs)
        stepping.end(optimizer)
        return result

    _replace(stack, optimizer, "step", step)


def _around(old: Function, new: Function) -> Function:
    """`new(old, ...)`, as a function: a partial would not become a method."""

    @functools.wraps(old)
    def called(*args: object, **kwargs: object) -> object:
        return new(old, *args, **kwargs)

    return called


def _replace(stack: ExitStack, owner: Any, name: str, new: Function) -> None:
    """A call of `owner.name(...)` becomes one of `new(old, ...)`."""
    stack.enter_context(patch.object(owner, name, _around(getattr(owner, name), new)))


def _exchange(new: Mapping[Function, Function]) -> None:
    """Replace functions in every module that has them under any name, such as a script that imported one from torch."""
    by_id = {id(old): replacement for old, replacement in new.items()}
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", None)
        if isinstance(held, dict):
            for name in [name for name, value in held.items() if id(value) in by_id]:
                held[name] = by_id[id(held[name])]


def _below(kind: Any) -> Iterator[Any]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)
