"""Dropout that a part of the model holds, and never applies."""

import inspect
import re
from contextlib import suppress

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from clearhead.doctor.calling.names import is_of_a_library
from clearhead.doctor.checks.base import Finding, Skipped, Subject, finding, model_check
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.tracing import ModuleCall


@model_check("T06", "dropouts", order=346, needs=("finite",))
def dropouts(subject: Subject) -> list[Finding]:
    """What holds a dropout drops something in training."""
    held = {name: _held(module) for name, module in subject.model.named_modules() if not is_of_a_library(type(module))}
    if not any(held.values()):
        owners = (
            module for module in subject.model.modules() if not isinstance(module, (nn.ModuleList, nn.ModuleDict))
        )
        elsewhere = any(map(_held, owners))
        reason = "its dropouts lie in layers of a library, or in nn.Sequential, which apply what they hold"
        raise Skipped(reason if elsewhere else "it holds no dropout module that drops anything")
    dropping = {id(call.module) for call in subject.inside_training.calls if _drops(call)}
    with subject.training():
        called = {call.name for call in subject.module_calls}
    for name, parts in held.items():
        owner = subject.model.get_submodule(name)
        if parts and name in called and not dropping & {*map(id, owner.modules())}:
            first = next(key for key, part in owner.named_children() if part is parts[0])
            if _is_mentioned(type(owner), first):
                continue  # for another of its options, or in a comment
            witness = f"{name or 'it'} holds '{first}' with p={parts[0].p:g}, and drops nothing in training"
            return [finding("T06", witness, where=place_of_module(name, owner))]
    return []


def _held(module: nn.Module) -> list[_DropoutNd]:
    return [part for part in module.children() if isinstance(part, _DropoutNd) and part.p > 0]


def _is_mentioned(cls: type, name: str) -> bool:
    """Whether the code of the class that says what is computed mentions a part but where it makes it."""
    home = next(base for base in cls.__mro__ if "forward" in vars(base))
    with suppress(OSError, TypeError):
        return re.search(rf"\bself\.{name}\b(?!\s*=[^=])", inspect.getsource(home)) is not None
    return True


def _drops(call: ModuleCall) -> bool:
    """Whether an operation drops numbers, or may be asked to."""
    return "dropout" in call.name or call.name in ("scaled_dot_product_attention", "multi_head_attention_forward")
