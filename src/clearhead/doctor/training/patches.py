"""The calls of torch that a training makes, told to listeners while they are watched, and put back afterwards."""

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
    """Let the listeners hear of every call; the stack, when it is closed, takes all of it back."""
    for handle in (
        register_module_forward_pre_hook(forwards.begin),
        register_module_forward_hook(forwards.end, with_kwargs=True, always_call=True),
        register_optimizer_step_pre_hook(stepping.begin),
        register_optimizer_step_post_hook(stepping.end),
    ):
        stack.callback(handle.remove)
    makers: dict[Function, Callable[[Function], Function]] = {
        torch.autograd.backward: _with_backward(gradients),
        clip_grad_norm_: _with_clip(gradients, by_norm=True),
        clip_grad_value_: _with_clip(gradients, by_norm=False),
    }
    _replace_everywhere(stack, {old: functools.wraps(old)(make(old)) for old, make in makers.items()})
    for method in ("scale", "unscale_", "step", "update"):
        _replace(stack, GradScaler, method, _with_scaler(gradients, stepping, method))
    _replace(stack, Optimizer, "__init__", _with_made(stepping))
    _install_schedulers(stack, stepping)


def listen_to(stack: ExitStack, optimizer: Any, stepping: Stepping) -> None:
    """Hear of the steps of an optimizer that is none of torch's."""
    own = optimizer.step

    @functools.wraps(own)
    def step(*args: object, **kwargs: object) -> object:
        stepping.begin(optimizer, (), {})
        result = own(*args, **kwargs)
        stepping.end(optimizer)
        return result

    optimizer.step = step
    stack.callback(delattr, optimizer, "step")


def _replace(stack: ExitStack, owner: object, name: str, make: Callable[[Function], Function]) -> None:
    """`owner.name` becomes what `make` makes of it."""
    old = vars(owner)[name]
    setattr(owner, name, functools.wraps(old)(make(old)))
    stack.callback(setattr, owner, name, old)


def _replace_everywhere(stack: ExitStack, new: Mapping[Function, Function]) -> None:
    """In every module that has one of them under any name, such as a script that imported it from torch."""
    _exchange(new)
    stack.callback(
        _exchange, {replacement: old for old, replacement in new.items()}
    )  # also in what was loaded meanwhile


def _exchange(new: Mapping[Function, Function]) -> None:
    by_id = {id(old): replacement for old, replacement in new.items()}
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", None)
        if isinstance(held, dict):
            for name in [name for name, value in held.items() if id(value) in by_id]:
                held[name] = by_id[id(held[name])]


def _with_backward(gradients: Gradients) -> Callable[[Function], Function]:
    def make(old: Function) -> Function:
        def backward(tensors: object, *args: object, **kwargs: object) -> object:
            with gradients.backward(tensors):
                return old(tensors, *args, **kwargs)

        return backward

    return make


def _with_clip(gradients: Gradients, *, by_norm: bool) -> Callable[[Function], Function]:
    def make(old: Function) -> Function:
        def clip(parameters: Any, limit: Any = None, *args: Any, **kwargs: Any) -> Any:
            held = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            name = "max_norm" if by_norm else "clip_value"
            limit = kwargs.pop(name) if name in kwargs else limit
            gradients.clip(held, float(limit), by_norm=by_norm)
            return old(held, limit, *args, **kwargs)

        return clip

    return make


def _with_scaler(gradients: Gradients, stepping: Stepping, method: str) -> Callable[[Function], Function]:
    def make(old: Function) -> Function:
        def called(scaler: GradScaler, *args: object, **kwargs: object) -> object:
            steps = stepping.begun
            result = old(scaler, *args, **kwargs)
            if scaler.is_enabled():
                gradients.scaled(method, scaler.get_scale(), stepped=stepping.begun > steps)
            return result

        return called

    return make


def _with_made(stepping: Stepping) -> Callable[[Function], Function]:
    def make(old: Function) -> Function:
        def init(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
            old(optimizer, *args, **kwargs)
            stepping.made(optimizer)

        return init

    return make


def _install_schedulers(stack: ExitStack, stepping: Stepping) -> None:
    busy: list[object] = []  # schedulers whose step is under way, a wrapper first; one that is being made, too

    def with_step(old: Function) -> Function:
        def step(scheduler: object, *args: object, **kwargs: object) -> object:
            before = rates_of(getattr(scheduler, "optimizer", None))
            busy.append(scheduler)
            try:
                result = old(scheduler, *args, **kwargs)
            finally:
                busy.pop()
            if not busy:
                stepping.scheduled(scheduler, before)
            return result

        return step

    def with_init(old: Function) -> Function:
        def initial_step(scheduler: object) -> None:
            stepping.heard_of(scheduler)
            busy.append(scheduler)
            try:
                old(scheduler)
            finally:
                busy.pop()

        return initial_step

    for kind in (LRScheduler, *_below(LRScheduler)):
        if "step" in vars(kind):
            _replace(stack, kind, "step", with_step)
    _replace(stack, LRScheduler, "_initial_step", with_init)


def _below(kind: Any) -> Iterator[Any]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)
