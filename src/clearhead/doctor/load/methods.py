"""A `forward` for models whose own says nothing of its arguments, or that have other methods instead."""

import inspect
import re
from collections.abc import Callable
from typing import Any

from torch import nn

from clearhead.doctor.calling.names import arguments_of
from clearhead.doctor.problems import attempt

MEMORY = re.compile(r"mem|enc|context|src_(out|hid|rep)")  # of a decoder's arguments: what the encoder made
ENCODERS = ("encode", "encoder_forward", "forward_encoder")
DECODERS = ("decode", "decoder_forward", "forward_decoder")
HEADS = ("project", "generator", "lm_head", "head", "projection", "projection_layer", "output", "out", "fc_out")
SINGLE = re.compile(r"logits|predict|forward_|classify|encode|features|embed|score")
EMPTY = inspect.Parameter.empty
MISSING = re.compile(r"missing \d+ required positional arguments?: (.*)")


def with_forward(model: nn.Module) -> nn.Module:
    """The model itself; its class becomes one that has a `forward` with named arguments, where its own has none."""
    cls, own = type(model), inspect.getattr_static(type(model), "forward")
    if not inspect.isfunction(own):  # scripted
        return model
    names, forward = _of_methods(model) if own is nn.Module.forward else _of_positions(model)
    if not names:
        return model

    def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return forward(self, **dict(zip(names, args, strict=False)), **kwargs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, default=default) for name, default in ({"self": EMPTY} | names).items()]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    named = type(cls.__name__, (cls,), {"forward": called, "__module__": cls.__module__, "__doc__": cls.__doc__})
    model.__class__ = named
    return model


def _of_methods(model: nn.Module) -> tuple[dict[str, object], Callable[..., Any]]:
    """encode, decode and a head, one after the other; or the one method that tells what it gives."""
    encode, decode = (next((n for n in names if _takes(model, n)), None) for names in (ENCODERS, DECODERS))
    if encode and decode:
        first, second = ({**_takes(model, name), **_may_take(model, name)} for name in (encode, decode))
        needed = [name for name, default in second.items() if default is EMPTY]
        memories = (name for name in needed if MEMORY.search(name) and name not in first and "mask" not in name)
        memory = next(memories, needed[0])
        head = next((name for name in HEADS if callable(getattr(model, name, None))), None)

        def composed(model: nn.Module, **arguments: Any) -> Any:
            known = getattr(model, encode)(**{name: arguments[name] for name in first if name in arguments})
            arguments[memory] = known[0] if isinstance(known, tuple) else known
            output = getattr(model, decode)(**{name: arguments[name] for name in second if name in arguments})
            output = output[0] if isinstance(output, tuple) else output
            return getattr(model, head)(output) if head else output

        names = [name for name in dict.fromkeys((*first, *second)) if name != memory]
        required = [name for name in names if EMPTY in (first.get(name), second.get(name))]
        return dict.fromkeys(required, EMPTY) | {name: None for name in names if name not in required}, composed
    single = next((name for name in vars(type(model)) if SINGLE.search(name) and _takes(model, name)), "")
    return _takes(model, single), lambda model, **arguments: getattr(model, single)(**arguments)


def _takes(model: nn.Module, name: str) -> dict[str, object]:
    """The required arguments of a public method of its class; none if there is no such method."""
    return {p.name: EMPTY for p in _parameters(model, name) if p.default is EMPTY}


def _may_take(model: nn.Module, name: str) -> dict[str, object]:
    """Those that are None by default, as masks are."""
    return {p.name: None for p in _parameters(model, name) if p.default is None}


def _parameters(model: nn.Module, name: str) -> list[inspect.Parameter]:
    method = getattr(type(model), name, None)
    if name.startswith("_") or not inspect.isfunction(method) or hasattr(nn.Module, name):
        return []
    return [p for p in arguments_of(method)[1:] if p.kind is p.POSITIONAL_OR_KEYWORD]


def _of_positions(model: nn.Module) -> tuple[dict[str, object], Callable[..., Any]]:
    """The names that the first call inside of `forward(*args)` asks for, in the error of a call without arguments."""
    forward = type(model).forward
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    if len(parameters) != 1 or parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        return {}, len
    with attempt() as attempted:
        model()
    message = MISSING.search(str(attempted.error))
    names = re.findall(r"'(\w+)'", message[1]) if message else []
    return dict.fromkeys(names, EMPTY), lambda model, **arguments: forward(model, *(arguments[name] for name in names))
