"""The steps of our own models, whose every axis gets its symbol."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.inspection.steps.axes import Sizes, size_of
from clearhead.inspection.steps.recording import record_steps
from clearhead.inspection.steps.table import ITEM_BYTES, TraceStep, TraceTable
from clearhead.inspection.steps.twin import Twin, sizes_of
from clearhead.models import LanguageModel
from clearhead.reference.shapes import weight_shapes

Reader = Callable[[int, int], str]  # the number of an axis here, and in the other pass -> its symbol


def trace_model(model: LanguageModel, *inputs: Tensor, target: str = "") -> TraceTable:
    """Every step of one forward pass of a model of ours.

    Args:
        inputs: ids (B, T), or source (B, T_src) and target (B, T).
        target: the model's name for the person.

    Raises:
        InputError: it cannot read these ids.
    """
    steps = record_steps(model, lambda: model(*inputs))
    T_src = inputs[0].shape[1] if len(inputs) > 1 else None
    B, T = inputs[-1].shape
    sizes = sizes_of(model.config, B, T, T_src)
    twin = Twin(model.config, T, next(model.parameters()))
    ids = twin.inputs(inputs)
    twins = record_steps(twin.model, lambda: twin.model(*ids))
    if are_alike(steps, twins):
        steps = with_symbols(steps, twins, lambda number, other: twin.scale.read(other, number, sizes))
    else:  # the model is not quite what its config says
        steps = with_symbols(steps, steps, lambda number, _: _by_number(number, sizes))
    name, count = type(model).__name__, sum(parameter.numel() for parameter in model.parameters())
    return TraceTable(target or name, tuple(steps), sizes, count, _call(inputs), name)


def trace_config(config: ModelConfig, T: int, T_src: int | None = None, *, target: str = "") -> TraceTable:
    """The same of a model that is not built: its twin's steps with its own sizes, for one text.

    Args:
        T, T_src: tokens of the text; `T_src`, of the source, for an encoder-decoder only.
    """
    twin = Twin(config, T)
    weights = {name: prod(shape) for name, shape in weight_shapes(config).items()}
    names = {id(weight): name for name, weight in twin.model.named_parameters()}
    real = [torch.full((1, width), -1) for width in (T_src, T) if width is not None]
    ids, sizes = twin.inputs(real), sizes_of(config, 1, T, T_src)
    twins = record_steps(twin.model, lambda: twin.model(*ids), lambda weight: weights[names[id(weight)]])
    named = with_symbols(twins, twins, lambda number, _: twin.scale.read_alone(number))
    name = type(twin.model).__name__
    steps = tuple(_replayed(step, sizes) for step in named)
    return TraceTable(target or name, steps, sizes, sum(weights.values()), _call(real), name)


def are_alike(steps: Sequence[TraceStep], others: Sequence[TraceStep]) -> bool:
    """Whether two passes took the same path: the same operations at the same lines, with as many axes."""
    return [_path(step) for step in steps] == [_path(step) for step in others]


def _path(step: TraceStep) -> tuple[object, ...]:
    axes = len(step.shape), len(step.score_shape)
    return step.module, step.operation, step.file, step.line, step.dtype, axes


def with_symbols(steps: Sequence[TraceStep], others: Sequence[TraceStep], read: Reader) -> list[TraceStep]:
    """The steps with symbols for axes, read off these and those of another pass that took the same path."""
    return [
        replace(
            step,
            axes=tuple(map(read, step.shape, other.shape)),
            score_axes=tuple(map(read, step.score_shape, other.score_shape)),
        )
        for step, other in zip(steps, others, strict=True)
    ]


def _by_number(number: int, sizes: Sizes) -> str:
    """The only symbol that is this number, or the number."""
    names = [name for name in ("B", "T", "T_src", "D", "V") if sizes.get(name) == number]
    return names[0] if len(names) == 1 else str(number)


def _replayed(step: TraceStep, sizes: Sizes) -> TraceStep:
    """A twin's step with other sizes."""
    shape, scores = (tuple(size_of(axis, sizes) for axis in axes) for axes in (step.axes, step.score_axes))
    n_bytes = prod(shape) * ITEM_BYTES[step.dtype] if step.bytes else 0
    return replace(step, shape=shape, score_shape=scores, bytes=n_bytes)


def _call(inputs: Sequence[Tensor]) -> str:
    return "model(ids)" if len(inputs) == 1 else "model(source, target)"


def ordinary_inputs(model: LanguageModel, T: int) -> tuple[Tensor, ...]:
    """A text of T tokens, none of which is padding; for an encoder-decoder, a source of as many as well."""
    pad, size = model.config.pad_id, model.config.vocab_size
    token = next(id for id in range(size) if id != pad)
    ids = torch.full((1, T), token, device=model.device)
    return (ids, ids) if model.config.architecture == "encoder_decoder" else (ids,)
