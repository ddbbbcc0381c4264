"""What every module and every operation read and wrote during a call, and the line of code that called it."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.problems import attempt

LIBRARY = os.path.dirname(torch.__file__) + os.sep  # the folder, and no other whose name begins so, as torchvision's
HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
PLAIN = (int, float, str)  # arguments that hold no tensor
ATTENDING = ("scaled_dot_product_attention", "multi_head_attention_forward")  # which may drop weights


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module or of an operation; tensors are copies on the CPU, as they were at the time.

    Where only shapes were recorded they are on the meta device: they have a shape and a type, and no numbers.
    """

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    module: nn.Module | None = None
    file: str | None = None
    line: int | None = None
    depth: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """What an operation was given, by position or by name."""
        args = self.options["args"]
        return args[index] if len(args) > index else self.options["kwargs"].get(name, default)


def _copies(value: object, is_kept: Callable[[Tensor], bool] = Tensor.is_floating_point) -> list[Tensor]:
    """What may be written to later is copied; weights are not, which are most of what a large model reads."""
    with torch._C.DisableTorchFunction():  # what is done to record is no operation of the model
        return [tensor.detach().to("cpu", copy=not is_weight(tensor)) for tensor in tensors(value) if is_kept(tensor)]


def is_weight(tensor: Tensor) -> bool:
    """Whether it is a parameter, or a view of one."""
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

    def before(_: nn.Module, args: tuple[object, ...], named: dict[str, object]) -> None:
        begun.append(_copies((args, named), is_kept))

    def after(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[object, ...], named: dict[str, object], output: object) -> None:
            inputs = begun.pop()
            if output is None:
                return  # it raised, and the model may go on without it
            calls.append(ModuleCall(name, inputs, _copies(output, is_kept), module, *caller(), len(begun)))

        return hook

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(after(name), with_kwargs=True, always_call=True))
        yield calls


class recorded_ops(TorchFunctionMode):  # noqa: N801 - used as a context manager
    """Every operation of torch that Python code calls, with the line that called it and the module that it is in.

    Args:
        is_recorded: by the name of an operation.
        shapes_only: keep no numbers, and no tensor that was made during the call. `options` then holds plain arguments,
            `weights`, the parameters among the inputs, and `views`: of each output whether an input holds its memory.
    """

    def __init__(self, is_recorded: Callable[[str], bool] = lambda name: True, *, shapes_only: bool = False) -> None:
        super().__init__()
        self.is_recorded, self.shapes_only = is_recorded, shapes_only
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
        kwargs, name = kwargs or {}, getattr(func, "__name__", str(func))
        if not self.is_recorded(name):
            return func(*args, **kwargs)
        inputs = [] if self.shapes_only else _safe_copies((args, kwargs))
        output = result = func(*args, **kwargs)
        if name == "__iter__" and not isinstance(output, Tensor):  # unpacking a tensor: record its parts
            result = list(output)
            output = iter(result)
        module = self.stack[-1] if self.stack else None
        if self.shapes_only:
            self.calls.append(_shapes_of_call(name, func, args, kwargs, result, module))
            return output
        options = {"func": func, "args": args, "kwargs": kwargs, "result": result}
        self.calls.append(ModuleCall(name, inputs, _safe_copies(result), module, *caller(), options=options))
        return output


def _safe_copies(value: object) -> list[Tensor]:
    """Copies, where copies can be made: inside a vectorized map they cannot."""
    with attempt():
        return _copies(value)
    return []  # the operation is then known by its name alone


def _shapes_of_call(
    name: str, func: object, args: tuple[object, ...], kwargs: dict[str, object], result: object, module: Any
) -> ModuleCall:
    """An operation without its numbers; inside a vectorized map it is known by its name alone."""
    options: dict[str, Any] = {"func": func, "weights": [], "views": []}
    options["args"] = tuple(value if isinstance(value, PLAIN) else None for value in args)
    options["kwargs"] = {key: value if isinstance(value, PLAIN) else None for key, value in kwargs.items()}
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    with attempt():
        read, returned = tensors((args, kwargs)), tensors(result)
        known = (tensor if isinstance(tensor, nn.Parameter) else tensor._base for tensor in read)
        options["weights"] = [weight for weight in known if isinstance(weight, nn.Parameter)]
        memory = {tensor.untyped_storage().data_ptr() for tensor in read} - {0}
        options["views"] = [tensor.untyped_storage().data_ptr() in memory for tensor in returned]
        inputs, outputs = [_shape(tensor) for tensor in read], [_shape(tensor) for tensor in returned]
    return ModuleCall(name, inputs, outputs, module, *caller(), options=options)


def _shape(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


class without_dropout(TorchFunctionMode):  # noqa: N801 - used as a context manager
    """No dropout, whatever the model's code asks for. `dropouts`: where it asked for some."""

    def __init__(self) -> None:
        super().__init__()
        self.dropouts: list[ModuleCall] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if "dropout" not in name and name not in ATTENDING:
            return func(*args, **kwargs)
        kwargs = dict(kwargs)
        call = ModuleCall(name, [], [], options={"args": args, "kwargs": kwargs})
        if name not in ATTENDING and name != "alpha_dropout_":
            self._note(call, dropout_probability(call))
            tensor = call.argument(0, "input")
            in_place = name.endswith("_") or kwargs.get("inplace") or call.argument(3, "inplace", False)
            return tensor if in_place else tensor.view_as(tensor)  # who reads what was not dropped can be told
        if name == "scaled_dot_product_attention":
            self._note(call, call.argument(4, "dropout_p", 0.0))
            causal = {"is_causal": args[5]} if len(args) > 5 else {}
            args, kwargs = args[:4], kwargs | {"dropout_p": 0.0} | causal
        elif name == "multi_head_attention_forward":
            self._note(call, call.argument(10, "dropout_p") if kwargs.get("training", True) else 0.0)
            kwargs["training"] = False
        return func(*args, **kwargs)

    def _note(self, call: ModuleCall, p: float | None) -> None:
        if p:
            file, line = caller()
            self.dropouts.append(replace(call, file=file, line=line, options={"p": p}))


@contextmanager
def quiet() -> Iterator[None]:
    """No dropout, and no gradients."""
    with torch.no_grad(), without_dropout():
        yield


def dropout_probability(call: ModuleCall) -> float:
    """The probability with which an operation drops numbers; 0 if it drops none."""
    if "dropout" not in call.name or call.name == "alpha_dropout_":
        return 0.0
    training = call.argument(2, "training", call.options["kwargs"].get("train", True))
    return float(call.argument(1, "p", 0.5)) if training else 0.0
