"""One call of a model, tried: what it is given, and whether logits are in what it returns."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.convention import Convention
from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.outputs import find_logits, find_row_output, follow
from clearhead.doctor.problems import attempt

ROWS = 5
SMALL = 2  # ids below this exist in every vocabulary


def drawn(T: int, S: int, V: int = SMALL, source_V: int = SMALL, rows: int = ROWS) -> Inputs:
    """Random rows; in a vocabulary of the smallest size, of the tokens 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0 if V <= SMALL else min(4, V // 2), V, (rows, T), generator=generator)
    source = torch.randint(min(4, source_V // 2), source_V, (rows, S), generator=generator)
    return Inputs(ids, source, labels=ids)


def with_output(
    model: nn.Module, convention: Convention, inputs: Inputs, value: object, vocab_size: int | None
) -> Convention | None:
    """The convention with the path to its logits in what it returned; None if nothing there has their shape."""
    rows, columns = inputs.ids.shape
    for drops_last in (False, True):
        path = find_logits(value, rows, columns - drops_last, vocab_size)
        if path is not None:
            return replace(convention, output=path, drops_last=drops_last)
    path = find_row_output(value, rows, whole=convention.reads_numbers)
    if path is None:
        return None
    if convention.at_once:
        return replace(convention, output=path, gives="rows")
    fewer = inputs.rows(torch.arange(rows - 2))
    with attempt() as attempted, torch.no_grad():
        shape = tuple(follow(convention.raw(model, fewer), path).shape)
    if attempted.failed or shape[0] != rows - 2:  # nothing tells its rows from its tokens
        return None
    grows = len(shape) == 2 and shape[1] == rows - 2 and follow(value, path).shape[1] == rows
    return replace(convention, output=path, gives="pairs" if grows else "rows")


@contextmanager
def vocabularies(model: nn.Module, inputs: Inputs) -> Iterator[dict[str, int]]:
    """The number of rows of the embeddings that read the ids and the source, as the model is called."""
    sizes: dict[str, int] = {}

    def look(module: nn.Module, args: tuple[object, ...], _: object) -> None:
        weight = getattr(module, "weight", None)
        if not args or not isinstance(args[0], Tensor) or not isinstance(weight, Tensor):
            return
        tokens = args[0].cpu()
        for name, expected in (("ids", inputs.ids), ("source", inputs.source)):
            forms = () if expected is None else (expected, expected.t())
            if any(tokens.shape == form.shape and torch.equal(tokens, form) for form in forms):
                sizes.setdefault(name, weight.shape[0])

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                hooks.enter_context(module.register_forward_hook(look))
        yield sizes
