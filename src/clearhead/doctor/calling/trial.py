"""One call of a model, tried: what it is given, and whether logits are in what it returns."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.axes import Axes
from clearhead.doctor.calling.convention import Convention
from clearhead.doctor.calling.inputs import Inputs, role_of
from clearhead.doctor.calling.names import parameters_of
from clearhead.doctor.calling.numbers import PLACES, WORDS, is_picture
from clearhead.doctor.calling.outputs import find_logits, find_row_output, follow, tensors
from clearhead.doctor.problems import attempt

ROWS = 5
SMALL = 2  # ids below this exist in every vocabulary
FEW = 3  # rows of an embedding that tells parts of a row apart, beside one of words

BLIND = "other tokens do not move what it returns"


@dataclass(frozen=True)
class CallAttempt:
    """A way to call a model, not known to work, with rows of T tokens and sources of S."""

    convention: Convention
    T: int
    S: int

    @property
    def inputs(self) -> Inputs:
        """What the model is given: ids of 0 and 1; a picture has its own number of parts."""
        pictures = {role_of(filler) for _, filler in self.convention.call if is_picture(filler)}
        T, S = PLACES if "ids" in pictures else self.T, PLACES if "source" in pictures else self.S
        inputs = drawn(T, S, rows=self.convention.at_once or ROWS)
        return inputs if self.convention.has_source else replace(inputs, source=None)


@dataclass(frozen=True)
class WorkingCall:
    """A convention that works, with the lengths and vocabularies that it works for, and what its axes mean."""

    convention: Convention
    T: int
    S: int
    vocab_size: int
    source_vocab_size: int
    axes: Axes = field(default_factory=Axes)

    @property
    def inputs(self) -> Inputs:
        """Random rows."""
        inputs = drawn(self.T, self.S, self.vocab_size, self.source_vocab_size)
        return inputs if self.convention.has_source else replace(inputs, source=None)


@dataclass(frozen=True)
class Outcome:
    """What came of a call. If it does not work, `known` is None, `message` says why, and `error` is what it raised."""

    known: WorkingCall | None
    message: str = ""
    error: Exception | None = None


def drawn(T: int, S: int, V: int = SMALL, source_V: int = SMALL, rows: int = ROWS) -> Inputs:
    """Random rows; in a vocabulary of the smallest size, of the tokens 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0 if V <= SMALL else min(4, V // 2), V, (rows, T), generator=generator)
    source = torch.randint(min(4, source_V // 2), source_V, (rows, S), generator=generator)
    return Inputs(ids, source, labels=ids)


def try_call(
    model: nn.Module, tried: CallAttempt, watching: AbstractContextManager[object] | None = None, *, reads: bool = False
) -> Outcome:
    """Call the model, and look for logits.

    Args:
        watching: entered while the model is called.
        reads: whether other tokens must give other logits.
    """
    inputs, convention = tried.inputs, tried.convention
    with attempt() as attempted, vocabularies(model, inputs) as sizes, torch.no_grad():
        with watching or nullcontext():
            value = convention.raw(model, inputs)
        if ROWS in inputs.ids.shape[1:] and not convention.at_once:  # a square may be taken for a number in each row
            convention.raw(model, inputs.rows(torch.arange(ROWS - 2)))
    if attempted.failed:
        return Outcome(None, attempted.sentence(400), attempted.error)
    with attempt() as attempted:
        located = with_output(model, convention, inputs, value, sizes.get("ids"))
        message = _why_not(model, located, inputs, value, sizes, reads)
        if message or located is None:
            return Outcome(None, message)
        with torch.no_grad():
            logits = located.logits(model, inputs)
        V = sizes.get("ids") or logits.shape[-1]
        known = {"ids": V, "source": sizes.get("source", V)}
        V, source_V = (known[role] if located.reads_words(role) else WORDS for role in ("ids", "source"))
        T, S = inputs.ids.shape[1], tried.S if inputs.source is None else inputs.source.shape[1]
        known_call = WorkingCall(located, T, S, V, source_V)
        V, source_V = next(_fitting(model, known_call), (V, source_V))
        return Outcome(replace(known_call, vocab_size=V, source_vocab_size=source_V))
    return Outcome(None, attempted.sentence(400), attempted.error)


def _why_not(
    model: nn.Module,
    located: Convention | None,
    inputs: Inputs,
    value: object,
    sizes: dict[str, int],
    reads: bool,
) -> str:
    """Why a call that came to its end is none; nothing if it is one."""
    if located is None:
        shapes = [tuple(leaf.shape) for leaf in tensors(value)[:3]]
        return f"given rows {tuple(inputs.ids.shape)} it returned {shapes or type(value).__name__}"
    if _reads_its_labels(model, located, inputs):
        return "what it was given as labels moves its logits"
    if sizes and min(sizes.values()) <= FEW < max(sizes.values()):
        return "one of its inputs has an embedding of two or three rows: it tells parts of a row apart"
    if reads and not _moves(model, located, inputs, replace(inputs, ids=1 - inputs.ids)):
        return BLIND
    return ""


def _reads_its_labels(model: nn.Module, convention: Convention, inputs: Inputs) -> bool:
    """Whether what is given as labels, and is required, moves the logits: then the model reads it. Ids are 0 and 1."""
    needed = {parameter.name for parameter in parameters_of(model) if parameter.default is parameter.empty}
    if not any(role_of(filler) == "labels" and name in needed for name, filler in convention.call):
        return False
    is_steady = not _moves(model, convention, inputs, inputs)
    return is_steady and _moves(model, convention, inputs, replace(inputs, labels=1 - inputs.ids))


def _moves(model: nn.Module, convention: Convention, first: Inputs, second: Inputs) -> bool:
    """Whether two batches give logits of one shape that differ."""
    with torch.no_grad():
        before, after = (convention.logits(model, batch) for batch in (first, second))
    return before.shape == after.shape and not torch.allclose(before, after, equal_nan=True)


def _fitting(model: nn.Module, known: WorkingCall) -> Iterator[tuple[int, int]]:
    """Sizes of vocabularies that it knows all tokens of: columns of a table may each have an embedding of their own."""
    sizes, smaller = (0, 0), (known.vocab_size, known.source_vocab_size)
    while sizes != smaller:
        sizes = smaller
        with attempt() as attempted, torch.no_grad():
            known.convention.logits(model, replace(known, vocab_size=sizes[0], source_vocab_size=sizes[1]).inputs)
        if not isinstance(attempted.error, IndexError):
            yield sizes
        smaller = max(SMALL, sizes[0] // 2), max(SMALL, sizes[1] // 2)


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
