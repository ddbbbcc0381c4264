"""Where in what a model returns the logits are."""

import operator
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d

from clearhead.doctor.problems import attempt

Path = tuple[str | int, ...]
MAX_DEPTH = 3
MANY = 1024  # outputs of a row; more are put together
LEAVES = (Tensor, int, float, str, type(None))  # what holds nothing, as far as the usual goes


def leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Everything in tuples, lists, dicts, dataclasses and plain objects, with the way to it."""
    parts = None if len(path) > MAX_DEPTH else _parts(value)
    if parts is None:
        yield path, value
    else:
        for key, part in parts:
            yield from leaves(part, (*path, key))


def _parts(value: object) -> Iterable[tuple[str | int, object]] | None:
    """What it holds, by name or number; None where it holds nothing."""
    if isinstance(value, LEAVES):
        return None
    if isinstance(value, (tuple, list)):
        return enumerate(value)
    if isinstance(value, Mapping):
        return value.items()
    if is_dataclass(value):
        return _fields(value)
    return vars(value).items() if hasattr(value, "__dict__") and not callable(value) else None


def _fields(value: Any) -> Iterator[tuple[str, object]]:
    """What a dataclass holds by name, without what it refuses to say: it may differ from layer to layer."""
    for field in fields(value):
        with attempt():
            yield field.name, getattr(value, field.name)


def tensors(value: object, depth: int = 0) -> list[Tensor]:
    """All tensors in it."""
    if isinstance(value, LEAVES) or depth > MAX_DEPTH:
        return [value] if isinstance(value, Tensor) else []
    return [tensor for _, part in _parts(value) or () for tensor in tensors(part, depth + 1)]


def follow(value: Any, path: Path) -> Any:
    """The part of it that the path leads to."""
    for step in () if isinstance(value, Tensor) else path:  # in another mode it may return less
        held = isinstance(value, (Mapping, tuple, list))
        value = operator.getitem(value, step) if held else getattr(value, str(step))
    return value


@contextmanager
def recorded_outputs(model: nn.Module, names: Iterable[str]) -> Iterator[dict[str, object]]:
    """What modules of these names gave when they were called last, in the order in which they did."""
    outputs: dict[str, object] = {}

    def keep(name: str, _: nn.Module, args: object, output: object) -> None:
        outputs.pop(name, None)
        outputs[name] = output

    with ExitStack() as hooks:
        for name in names:
            hooks.enter_context(model.get_submodule(name).register_forward_hook(partial(keep, name)))
        yield outputs


def arrange(output: Tensor, rows: int, columns: int) -> Tensor | None:
    """The output as (rows, columns, V), however its axes lie; None if they are not there."""
    if not output.is_floating_point():
        return None
    shape = tuple(output.shape)
    if output.dim() == 3 and shape[:2] == (rows, columns):
        return output
    if output.dim() == 3 and shape[:2] == (columns, rows):
        return output.transpose(0, 1)
    if output.dim() == 3 and (shape[0], shape[2]) == (rows, columns):
        return output.transpose(1, 2)
    if output.dim() == 2 and shape[0] == rows * columns:
        return output.reshape(rows, columns, -1)  # (B * T, V) -> (B, T, V)
    return output[..., None] if shape == (rows, columns) else None  # (B, T) -> (B, T, 1)


def spread(output: Tensor, columns: int, *, paired: bool) -> Tensor:
    """One output for each row, (rows, ...), as logits of each of its tokens, (rows, columns, C); of many, means.

    Args:
        paired: it is (rows, rows), every row beside every other; the row's own is taken.
    """
    own = output.diagonal() if paired else output
    own = own.flatten(1) if own.dim() > 1 else own[:, None]
    own = adaptive_avg_pool1d(own, MANY) if own.shape[1] > MANY else own
    return own[:, None].expand(-1, columns, -1)


def find_row_output(value: object, rows: int, *, whole: bool) -> Path | None:
    """The way to the first tensor that holds one output for each row: numbers, or if `whole`, such as a picture.

    What lies deeper is rather a record of the layers. `rows`: 0 if there is no axis of them.
    """
    paths = [
        (leaf.dim() > 2 and not whole, len(path) > 1, leaf.dim() > 2, number, path)
        for number, (path, leaf) in enumerate(leaves(value))
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() and len(leaf) == (rows or len(leaf))
    ]
    is_barred, *_, path = min(paths, default=(True, None))
    return None if is_barred else path


def find_logits(value: object, rows: int, columns: int, vocab_size: int | None) -> Path | None:
    """The way to what is most like logits: named so, as wide as the vocabulary, or the first of its shape.

    Of a list inside of what is returned it is the last: there every layer says what it made.
    """
    candidates: list[tuple[int, int, Path]] = []
    for number, (path, leaf) in enumerate(leaves(value)):
        if not isinstance(leaf, Tensor) or (arranged := arrange(leaf, rows, columns)) is None:
            continue
        named = any("logits" in str(step) for step in path)
        wide = vocab_size is not None and arranged.shape[-1] == vocab_size
        widest = vocab_size is not None and arranged.shape[-1] > vocab_size
        is_flat = leaf.dim() == 2 and leaf.shape[0] == rows  # perhaps a mask
        candidates.append((is_flat - 2 * (4 * named + 2 * wide + widest), number, path))
    if not candidates:
        return None
    score, _, first = min(candidates)
    listed = len(first) > 1 and isinstance(first[-1], int)
    return max(path for other, _, path in candidates if other == score and path[:-1] == first[:-1]) if listed else first
