"""One forward pass, operation by operation: what every step returned, in shapes alone."""

import os
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from clearhead.doctor.probes.tracing import ModuleCall, recorded_ops
from clearhead.inspection.steps.table import TraceStep

HERE = os.path.dirname(__file__) + os.sep  # what calls a model of which all code is torch's
FUSED, WHOLE = "scaled_dot_product_attention", "multi_head_attention_forward"


def record_steps(
    model: nn.Module, call: Callable[[], object], count: Callable[[nn.Parameter], int] = nn.Parameter.numel
) -> list[TraceStep]:
    """Every operation within the model that returns a tensor while `call` runs; its axes are numbers yet.

    Args:
        model: gives the paths of its modules.
        call: runs it, with inputs that it knows.
        count: of a weight's numbers.
    """
    with torch.no_grad(), recorded_ops(shapes_only=True) as ops:
        call()
    paths: dict[nn.Module | None, str] = {module: path for path, module in model.named_modules()}
    return [step for call in ops.calls if call.module is not None for step in _steps(call, paths, count)]


def _steps(
    call: ModuleCall, paths: Mapping[nn.Module | None, str], count: Callable[[nn.Parameter], int]
) -> Iterator[TraceStep]:
    """One for each tensor that an operation returned."""
    views, weights = call.options["views"], call.options["weights"]
    parameters = sum({id(weight): count(weight) for weight in weights}.values())
    several = len(call.outputs) > 1
    file, line = (None, None) if call.file is None or call.file.startswith(HERE) else (call.file, call.line)
    for index, output in enumerate(call.outputs):
        is_view = views[index] if index < len(views) else False
        yield TraceStep(
            module=paths.get(call.module, ""),
            operation=_name(call) + (f" {index + 1}/{len(call.outputs)}" if several else ""),
            axes=tuple(map(str, output.shape)),
            shape=tuple(output.shape),
            dtype=str(output.dtype).removeprefix("torch."),
            bytes=0 if is_view else output.numel() * output.element_size(),
            parameters=0 if index else parameters,
            file=file,
            line=line,
            score_shape=() if index else _scores(call, output),
        )


def _name(call: ModuleCall) -> str:
    """Torch's name; an attribute's own, as 'mT'."""
    func = call.options["func"]
    name = getattr(getattr(func, "__self__", None), "__name__", call.name) if call.name == "__get__" else call.name
    return str(name).strip("_") or call.name


def _scores(call: ModuleCall, output: Tensor) -> tuple[int, ...]:
    """The shape of the scores that an attention computes, be they held or not."""
    if call.name == FUSED and len(call.inputs) >= 3:
        return (*call.inputs[0].shape[:-1], call.inputs[1].shape[-2])
    if call.name == WHOLE and len(call.inputs) >= 3:
        n_heads = call.argument(4, "num_heads", 1)
        query, key = call.inputs[:2]  # (T, B, D), or (T, D)
        return (*query.shape[1:-1], n_heads, query.shape[0], key.shape[0])
    return tuple(output.shape) if call.name == "softmax" else ()
