"""What every module and every operation read and wrote during a call, and the line of code that called it."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.problems import attempt

LIBRARY = os.path.dirname(torch.__file__) + os.sep  # the folder, and no other whose name begins so, as torchvision's
HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module or of an operation; tensors are copies on the CPU, as they were at the time."""

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    module: nn.Module | None = None
    file: str | None = None
    line: int | None = None
    depth: int = 0
    options: dict[str, Any] = field(default_factory=dict)


def _copies(value: object, is_kept: Callable[[Tensor], bool] = Tensor.is_floating_point) -> list[Tensor]:
    """What may be written to later is copied; weights are not, which are most of what a large model reads."""
    return [tensor.detach().to("cpu", copy=not _is_weight(tensor)) for tensor in tensors(value) if is_kept(tensor)]


def _is_weight(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


def caller() -> tuple[str | None, int | None]:
    """File and line of the innermost code on the stack that is neither torch's nor the doctor's."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((LIBRARY, HERE, "<")) and "contextlib" not in file:
            return file, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None, None


def home_of(module: nn.Module) -> tuple[str | None, int | None]:
    """File and line of a module's `forward`; none for torch's own, which is never the one to be changed."""
    try:
        forward = type(module).forward
        file, line = inspect.getsourcefile(forward), inspect.getsourcelines(forward)[1]
    except (TypeError, OSError):
        return None, None
    return (None, None) if file is None or file.startswith(LIBRARY) else (file, line)


@contextmanager
def recorded_modules(
    model: nn.Module, is_kept: Callable[[Tensor], bool] = Tensor.is_floating_point
) -> Iterator[list[ModuleCall]]:
    """Every call of every module, in the order in which they end: the innermost first. `is_kept`: which tensors."""
    calls: list[ModuleCall] = []
    begun: list[list[Tensor]] = []
    handles = []

    def before(_: nn.Module, args: tuple[object, ...], named: dict[str, object]) -> None:
        begun.append(_copies((args, named), is_kept))

    def after(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[object, ...], named: dict[str, object], output: object) -> None:
            inputs = begun.pop()
            if output is None:
                return  # it raised, and the model may go on without it
            file, line = caller()
            calls.append(ModuleCall(name, inputs, _copies(output, is_kept), module, file, line, len(begun)))

        return hook

    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after(name), with_kwargs=True, always_call=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


class recorded_ops(TorchFunctionMode):  # noqa: N801 - used as a context manager
    """Every operation of torch that Python code calls, with the line that called it and the module that it is in."""

    def __init__(self, is_recorded: Callable[[str], bool] = lambda name: True) -> None:
        super().__init__()
        self.is_recorded = is_recorded
        self.calls: list[ModuleCall] = []
        self.stack: list[nn.Module] = []
        self.handles: list[Any] = []

    def __enter__(self) -> Self:
        self.handles = [
            register_module_forward_pre_hook(lambda module, args: self.stack.append(module)),
            register_module_forward_hook(lambda module, args, output: self._leave(), always_call=True),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for handle in self.handles:
            handle.remove()

    def _leave(self) -> None:
        if self.stack:
            self.stack.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        is_recorded = self.is_recorded(name)
        inputs = _safe_copies((args, kwargs)) if is_recorded else []
        output = func(*args, **kwargs)
        if name == "__iter__" and not isinstance(output, Tensor):  # unpacking a tensor: its parts are to be known
            parts = list(output)
            output, result = iter(parts), parts
        else:
            result = output
        if is_recorded:
            file, line = caller()
            options = {"func": func, "args": args, "kwargs": kwargs, "result": result}
            module = self.stack[-1] if self.stack else None
            self.calls.append(ModuleCall(name, inputs, _safe_copies(result), module, file, line, options=options))
        return output


def _safe_copies(value: object) -> list[Tensor]:
    """Copies, where copies can be made: inside a vectorized map they cannot."""
    with attempt():
        return _copies(value)
    return []  # the operation is then known by its name alone


class without_dropout(TorchFunctionMode):  # noqa: N801 - used as a context manager
    """No dropout, whatever the model's code asks for. `dropouts`: where it asked for some."""

    def __init__(self) -> None:
        super().__init__()
        self.dropouts: list[ModuleCall] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if "dropout" in name and name != "alpha_dropout_":
            p, training = dropout_arguments(args, kwargs)
            if p and training:
                self._note(name, p)
            return args[0] if args else kwargs["input"]
        if name == "scaled_dot_product_attention":
            if len(args) > 4 or kwargs.get("dropout_p"):
                p = args[4] if len(args) > 4 else kwargs["dropout_p"]
                if p:
                    self._note(name, p)
                args, kwargs = args[:4], kwargs | {"dropout_p": 0.0} | ({"is_causal": args[5]} if len(args) > 5 else {})
        elif name == "multi_head_attention_forward":
            if kwargs.get("training", True) and len(args) > 10 and args[10]:
                self._note(name, args[10])
            kwargs["training"] = False
        return func(*args, **kwargs)

    def _note(self, name: str, p: float) -> None:
        file, line = caller()
        self.dropouts.append(ModuleCall(name, [], [], file=file, line=line, options={"p": p}))


def dropout_arguments(args: Any, kwargs: Any) -> tuple[float, bool]:
    """The probability, and whether it is to lose anything, of a call of dropout."""
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    training = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
    return float(p), bool(training)


def dropout_probability(call: ModuleCall) -> float:
    """With what probability an operation loses numbers; 0 if it loses none."""
    if "dropout" not in call.name or call.name == "alpha_dropout_":
        return 0.0
    p, training = dropout_arguments(call.options["args"], call.options["kwargs"])
    return p if training else 0.0
