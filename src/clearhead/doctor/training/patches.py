"""Calls of torch that a training makes are passed on to listeners, and put back afterwards."""

import functools
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from clearhead.doctor.training.events import EventLog, Function
from clearhead.doctor.training.passes import Passes
from clearhead.doctor.training.stepping import Stepping


def install(stack: ExitStack, event_log: EventLog, passes: Passes, stepping: Stepping) -> None:
    """Let the listeners hear every call, until the stack is closed."""
    quiet, heard = event_log.quiet, event_log.heard
    for handle in (
        register_module_forward_pre_hook(quiet(passes.begin_forward)),
        register_module_forward_hook(quiet(passes.end_forward), with_kwargs=True, always_call=True),
        register_optimizer_step_pre_hook(quiet(stepping.begin)),
        register_optimizer_step_post_hook(quiet(stepping.end)),
    ):
        stack.callback(handle.remove)
    functions: dict[Function, Function] = {
        torch.autograd.backward: heard(torch.autograd.backward, passes.begin_backward, passes.end_backward),
        clip_grad_norm_: heard(clip_grad_norm_, functools.partial(passes.clip, "max_norm")),
        clip_grad_value_: heard(clip_grad_value_, functools.partial(passes.clip, "clip_value")),
    }
    _exchange(functions)
    stack.callback(_exchange, {new: old for old, new in functions.items()})  # also in modules imported in between

    def listen(owner: Any, method: str, before: Function | None, after: Function) -> None:
        stack.enter_context(patch.object(owner, method, heard(getattr(owner, method), before, after)))

    for method in ("scale", "unscale_", "step", "update"):
        listen(GradScaler, method, None, functools.partial(passes.scaled, method))
    listen(Optimizer, "__init__", None, stepping.create)
    for kind in _with_subclasses(LRScheduler):
        for method in {"step", "_initial_step"} & vars(kind).keys():
            listen(kind, method, stepping.begin_schedule, functools.partial(stepping.end_schedule, method))


def listen_to(stack: ExitStack, event_log: EventLog, optimizer: Any, stepping: Stepping) -> None:
    """Hear the steps of an optimizer that is not torch's."""
    step = event_log.heard(
        optimizer.step, lambda *_, **__: stepping.begin(optimizer, (), {}), lambda *_, **__: stepping.end(optimizer)
    )
    stack.enter_context(patch.object(optimizer, "step", step))


def _exchange(new: Mapping[Function, Function]) -> None:
    """Replace functions in every module that has them under any name, such as a script that imported one from torch."""
    by_id = {id(old): replacement for old, replacement in new.items()}
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", None)
        if isinstance(held, dict):
            for name in [name for name, value in held.items() if id(value) in by_id]:
                held[name] = by_id[id(held[name])]


def _with_subclasses(kind: Any) -> set[Any]:
    """A class and all below it."""
    return {kind}.union(*map(_with_subclasses, kind.__subclasses__()))
