"""Put something else in the place of what a model computes, and see what becomes of its output."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from clearhead.errors import UsageError
from clearhead.inspection.capture.recording import (
    HIDDEN,
    IN_ATTENTION,
    INPUT,
    OUTPUT,
    first_tensor,
    merge_heads,
    split_heads,
)
from clearhead.inspection.capture.sites import attention_sites, called_modules, feedforward_sites, path, stack_sites
from clearhead.parts import Attention
from clearhead.suggestions import did_you_mean

Edit = float | Tensor | NDArray[Any] | Callable[[Tensor], Tensor]
MIXED = "mixed"


@contextmanager
def intervene(model: nn.Module, edits: Mapping[str, Edit]) -> Iterator[None]:
    """Inside the `with`, every call of the model computes with these values in the place of its own.

    To ablate a head, zero it in `<attention>.mixed`; a position, in any activation; a sublayer, in the output of its
    part. To patch, take the value from another trace; to steer, add a vector in a function. The hooks are removed
    whatever happens. An intervention with the value that is there anyway changes no bit.

    Args:
        model: any module.
        edits: name -> what to put there. Names are those of `record`, without what fused attention never holds
            (`.q`, `.k`, `.v`, `.scores`, `.attention`); the modules `query`, `key` and `value` can be edited instead. A
            value is a number, an array or a tensor that broadcasts to the activation, or a function of the activation
            that returns one of the same shape; gradients flow through it.

    Raises:
        UsageError: nothing of the model can be edited by such a name; during a call, a value does not fit; or, at the
            end, the model was called and never computed what was to be edited.
    """
    register = _registrars(model)
    called, used = list[bool](), set[str]()

    def change(name: str, edit: Edit, value: Tensor) -> Tensor:
        used.add(name)
        return edited(name, edit, value)

    with ExitStack() as hooks:
        for name, edit in edits.items():
            if name not in register:
                raise UsageError(_unknown(model, name, register))
            hooks.enter_context(register[name](partial(change, name, edit)))
        hooks.enter_context(model.register_forward_hook(lambda module, args, output: called.append(True)))
        yield
    unused = [name for name in edits if name not in used]
    if called and unused:
        raise UsageError(f"the model never computed '{unused[0]}', so nothing was put in its place")


Change = Callable[[Tensor], Tensor]
Register = Callable[[Change], RemovableHandle]


def _registrars(model: nn.Module) -> dict[str, Register]:
    """What can be edited, and how to hook into it."""
    registrars: dict[str, Register] = {
        name or OUTPUT: partial(_at_output, module) for name, module in called_modules(model)
    }
    inputs: dict[str, nn.Module] = {path(stack.name, INPUT): stack.module for stack in stack_sites(model)}
    inputs |= {path(site.name, HIDDEN): site.module.down for site in feedforward_sites(model)}
    registrars |= {name: partial(_at_input, module) for name, module in inputs.items()}
    return registrars | {path(site.name, MIXED): partial(_at_heads, site.module) for site in attention_sites(model)}


# Interventions come before the hooks of `record`, whichever was entered first: a trace holds what was put in place.


def _at_output(module: nn.Module, change: Change) -> RemovableHandle:
    return module.register_forward_hook(lambda module, args, output: _replaced(output, change), prepend=True)


def _at_input(module: nn.Module, change: Change) -> RemovableHandle:
    return module.register_forward_pre_hook(lambda module, args: (change(args[0]), *args[1:]), prepend=True)


def _at_heads(attention: Attention, change: Change) -> RemovableHandle:
    def by_heads(x: Tensor) -> Tensor:
        return merge_heads(change(split_heads(x, attention.head_dim)))  # (B, T, H * K), as (B, H, T, K) meanwhile

    return _at_input(attention.output, by_heads)


def _replaced(output: Any, change: Change) -> Any:
    """A module's output with its first tensor changed."""
    if isinstance(output, Tensor):
        return change(output)
    first = first_tensor(output)
    if first is None:
        return output
    if isinstance(output, Mapping):
        values = {key: change(value) if value is first else value for key, value in output.items()}
        return type(output)(**values)
    parts = [_replaced(part, change) if first_tensor(part) is first else part for part in output]
    return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)


def edited(name: str, edit: Edit, value: Tensor) -> Tensor:
    """What takes the place of `value`.

    Raises:
        UsageError: the edit does not fit, or the function returns another shape.
    """
    is_function = callable(edit) and not isinstance(edit, Tensor)
    new = edit(value) if is_function else edit  # type: ignore[operator]
    try:
        tensor = torch.as_tensor(new).to(value)
        fits = tensor.shape == value.shape or not is_function
        expanded = tensor.expand_as(value)
    except (RuntimeError, TypeError, ValueError):
        fits = False
    if not fits:
        shape = tuple(getattr(new, "shape", ())) or type(new).__name__
        raise UsageError(f"'{name}' has the shape {tuple(value.shape)}; what is put in its place is {shape}")
    return torch.empty_like(value).copy_(expanded)  # laid out as the original, so that kernels add in the same order


def _unknown(model: nn.Module, name: str, known: Mapping[str, object]) -> str:
    recomputed = {path(site.name, step) for site in attention_sites(model) for step in IN_ATTENTION if step != MIXED}
    if name in recomputed:
        return (
            f"'{name}' cannot be edited, because fused attention never holds it; "
            "edit `.mixed`, or the modules `query`, `key` and `value`"
        )
    hint = did_you_mean(name, known) or "; `inspection.activation_names(model)` lists the names"
    return f"the model computes nothing named '{name}'{hint}"
