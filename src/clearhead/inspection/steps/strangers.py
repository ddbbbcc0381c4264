"""The steps of anybody's model: called as the doctor calls it, or as the person does."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import islice
from typing import Any

from torch import Tensor, nn

from clearhead.doctor.calling.lengths import LENGTHS, SOURCE_LENGTHS
from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.calling.trial import ROWS
from clearhead.doctor.load.unwrap import unwrapped
from clearhead.doctor.preparation import prepare
from clearhead.doctor.probes.tracing import quiet
from clearhead.doctor.problems import attempt
from clearhead.doctor.spec import Spec
from clearhead.doctor.state_guard import guarded
from clearhead.doctor.subject import Subject
from clearhead.errors import DataError
from clearhead.inspection.steps.axes import Sizes, TwoPasses
from clearhead.inspection.steps.ours import are_alike, trace_model, with_symbols
from clearhead.inspection.steps.recording import record_steps
from clearhead.inspection.steps.table import TraceStep, TraceTable
from clearhead.models import LanguageModel

BATCHES = (3, 7, 11, 5, 13, 2)  # rows; primes first, so that their size tells axes
TRIED, PASSES = 6, 10  # other lengths, and passes in all


def trace_steps(model: nn.Module, *inputs: Any, **options: Any) -> TraceTable:
    """Every operation of `model(*inputs, **options)`, with shapes, bytes, weights and the line that called it.

    Of this library's models, every axis gets its symbol. Of others, B and T are named after the first tensor of token
    ids (B, T) where no other size is the same number.

    Args:
        model: any module, in the mode that it is in.
        inputs, options: what it is called with.

    Returns:
        The table; it computes no gradients, and keeps no tensor of the pass.
    """
    if isinstance(model, LanguageModel) and not options and all(isinstance(part, Tensor) for part in inputs):
        return trace_model(model, *inputs)
    steps = record_steps(model, lambda: model(*inputs, **options))
    ids = next((part for part in tensors((inputs, options)) if part.dim() == 2 and not part.is_floating_point()), None)
    sizes = {} if ids is None else _unlike_others(dict(zip("BT", ids.shape, strict=True)), model)
    steps = with_symbols(steps, steps, lambda number, _: _by_number(number, sizes))
    return TraceTable(type(model).__name__, tuple(steps), sizes, _parameters(model), "", type(model).__name__)


def trace_stranger(model: object, request: Mapping[str, Any]) -> dict[str, Any]:
    """A task of the process in which strangers' models run: the table as plain data.

    Raises:
        DataError: no way was found to call the model, or it cannot be copied.
    """
    module = unwrapped(model)
    with guarded(request["seed"], module):
        subject = prepare(module, Spec(kind=request["kind"]), "quick", request["seed"])
        table = trace_subject(subject)
    return table.named(request["target"]).as_dict()


def trace_subject(subject: Subject) -> TraceTable:
    """The steps of a model that the doctor can call.

    What differs between two passes over other numbers of rows and tokens is named B, T and T_src.

    Raises:
        DataError: it does not run with the rows that were found to work.
    """
    model, weights = subject.original, _sizes_of_weights(subject.original)
    vocabulary = subject.calling.vocab_size
    is_told = subject.convention.reads_words("ids") and vocabulary not in _read_by_weights(model)
    passes: list[tuple[Sizes, list[TraceStep]]] = []
    problem = ""
    for sizes in islice(_sizes(subject, weights), PASSES):
        with attempt() as attempted:
            steps = _pass(subject, sizes)
        if attempted.failed:
            problem = attempted.sentence()
        elif not passes or are_alike(passes[0][1], steps):
            passes.append((sizes, steps))
        if len(passes) == 2:
            break
    if not passes:
        raise DataError(f"{type(model).__name__} does not run with a batch of these sizes ({problem})")
    (sizes, steps), (other_sizes, other_steps) = passes[0], passes[-1]
    names = TwoPasses(sizes, other_sizes, vocabulary if is_told else None)
    steps = with_symbols(steps, other_steps, names.read)
    class_name, call = type(model).__name__, subject.convention.sentence
    known = {**sizes, **({"V": vocabulary} if is_told else {})}
    return TraceTable(class_name, tuple(steps), known, _parameters(model), call, class_name)


def _pass(subject: Subject, sizes: Sizes) -> list[TraceStep]:
    """One pass of the model with the weights that it came with."""
    S = sizes.get("T_src", subject.calling.S)
    fitting = replace(subject, calling=replace(subject.calling, T=sizes["T"], S=S))
    inputs = fitting.inputs(sizes["B"])
    with quiet():
        return record_steps(subject.fresh, lambda: subject.convention.raw(subject.fresh, inputs))


def _sizes(subject: Subject, weights: AbstractSet[int]) -> Iterator[Sizes]:
    """Numbers of rows and tokens: first those that are known to work, and no size that a weight has, if possible."""
    T, S, has_source = subject.calling.T, subject.calling.S, subject.convention.has_source
    rows = sorted(BATCHES, key=lambda size: size in weights or size in (T, S))
    yield _named(rows[0], T, S if has_source else None)
    lengths = sorted((size for size in LENGTHS if size not in (T, S)), key=lambda size: size in weights)
    for index, length in enumerate(lengths[:TRIED]):
        shorter = [size for size in SOURCE_LENGTHS if size not in (length, T, S, rows[1])]
        yield _named(rows[1], length, shorter[index % len(shorter)] if has_source else None)
    for size in rows[1:3]:
        yield _named(size, T, S if has_source else None)  # it may take this length alone
    yield _named(ROWS, T, S if has_source else None)


def _named(B: int, T: int, T_src: int | None) -> Sizes:
    return {"B": B, "T": T} | ({} if T_src is None else {"T_src": T_src})


def _sizes_of_weights(model: nn.Module) -> set[int]:
    return {size for weight in model.parameters() for size in weight.shape}


def _read_by_weights(model: nn.Module) -> set[int]:
    """Sizes that matrices read: one of them may be a width as well as what it is beside."""
    return {size for weight in model.parameters() for size in weight.shape[1:]}


def _unlike_others(sizes: Sizes, model: nn.Module) -> Sizes:
    """Those that no other is, and no axis of a weight."""
    others = [*sizes.values(), *_sizes_of_weights(model)]
    return {name: size for name, size in sizes.items() if others.count(size) == 1 and size > 1}


def _by_number(number: int, sizes: Sizes) -> str:
    return next((name for name, size in sizes.items() if size == number), str(number))


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
