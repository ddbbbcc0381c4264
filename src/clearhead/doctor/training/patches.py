"""Calls of torch that a training makes are passed on to listeners, and put back afterwards."""

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from clearhead.doctor.training.events import rates_of
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
        torch.autograd.backward: functools.partial(_backward, gradients),
        clip_grad_norm_: functools.partial(_clip, gradients, "max_norm"),
        clip_grad_value_: functools.partial(_clip, gradients, "clip_value"),
    }
    around = {old: _around(old, new) for old, new in replacements.items()}
    _exchange(around)
    stack.callback(_exchange, {new: old for old, new in around.items()})  # also in modules imported in between
    for method in ("scale", "unscale_", "step", "update"):
        _replace(stack, GradScaler, method, functools.partial(_scale, gradients, stepping, method))
    _replace(stack, Optimizer, "__init__", functools.partial(_create, stepping))
    _install_schedulers(stack, stepping)


def listen_to(stack: ExitStack, optimizer: Any, stepping: Stepping) -> None:
    """Hear the steps of an optimizer that is not torch's."""
    own = optimizer.step

    @functools.wraps(own)
    def step(*args: object, **kwargs: object) -> object:
        stepping.begin(optimizer, (), {})
        result = own(*args, **kwargs)
        stepping.end(optimizer)
        return result

    optimizer.step = step
    stack.callback(delattr, optimizer, "step")


def _around(old: Function, new: Function) -> Function:
    """`new(old, ...)`, as a function: a partial would not become a method."""

    @functools.wraps(old)
    def called(*args: object, **kwargs: object) -> object:
        return new(old, *args, **kwargs)

    return called


def _replace(stack: ExitStack, owner: object, name: str, new: Function) -> None:
    """A call of `owner.name(...)` becomes one of `new(old, ...)`."""
    old = vars(owner)[name]
    setattr(owner, name, _around(old, new))
    stack.callback(setattr, owner, name, old)


def _exchange(new: Mapping[Function, Function]) -> None:
    """Replace functions in every module that has them under any name, such as a script that imported one from torch."""
    by_id = {id(old): replacement for old, replacement in new.items()}
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", None)
        if isinstance(held, dict):
            for name in [name for name, value in held.items() if id(value) in by_id]:
                held[name] = by_id[id(held[name])]


def _backward(gradients: Gradients, old: Function, tensors: object, *args: object, **kwargs: object) -> object:
    with gradients.backward(tensors):
        return old(tensors, *args, **kwargs)


def _clip(
    gradients: Gradients, limit_name: str, old: Function, parameters: Any, *args: Any, **kwargs: Any
) -> object:  # the limit stands first, or has its name
    held = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    limit, *args_left = [kwargs.pop(limit_name)] if limit_name in kwargs else args
    gradients.clip(held, float(limit), by_norm=limit_name == "max_norm")
    return old(held, limit, *args_left, **kwargs)


def _scale(
    gradients: Gradients,
    stepping: Stepping,
    method: str,
    old: Function,
    scaler: GradScaler,
    *args: object,
    **kwargs: object,
) -> object:
    steps = stepping.begun
    result = old(scaler, *args, **kwargs)
    if scaler.is_enabled():
        gradients.scaled(method, scaler.get_scale(), stepped=stepping.begun > steps)
    return result


def _create(stepping: Stepping, old: Function, optimizer: Optimizer, *args: object, **kwargs: object) -> None:
    old(optimizer, *args, **kwargs)
    stepping.created(optimizer)


def _install_schedulers(stack: ExitStack, stepping: Stepping) -> None:
    busy: list[object] = []  # schedulers inside `step` or their creation, a wrapper first

    def inside(scheduler: object, old: Function, *args: object, **kwargs: object) -> object:
        busy.append(scheduler)
        try:
            return old(scheduler, *args, **kwargs)
        finally:
            busy.pop()

    def step(old: Function, scheduler: object, *args: object, **kwargs: object) -> object:
        before = rates_of(getattr(scheduler, "optimizer", None))
        result = inside(scheduler, old, *args, **kwargs)
        if not busy:
            stepping.scheduled(scheduler, before)
        return result

    def initial_step(old: Function, scheduler: object) -> None:
        stepping.event_log.kept.append(scheduler)
        inside(scheduler, old)

    for kind in (LRScheduler, *_below(LRScheduler)):
        if "step" in vars(kind):
            _replace(stack, kind, "step", step)
    _replace(stack, LRScheduler, "_initial_step", initial_step)


def _below(kind: Any) -> Iterator[Any]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)
