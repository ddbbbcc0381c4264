"""One call of a model, tried: what it is given, and whether logits are in what it returns."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearhead.doctor.calling.axes import Axes, influences
from clearhead.doctor.calling.convention import Convention
from clearhead.doctor.calling.inputs import Inputs, filler_of, role_of
from clearhead.doctor.calling.names import parameters_of
from clearhead.doctor.calling.numbers import PLACES, WORDS, is_picture
from clearhead.doctor.calling.outputs import arrange, find_logits, find_row_output, follow, recorded_outputs, tensors
from clearhead.doctor.problems import attempt

ROWS = 5
FEWER = 3  # rows
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
    def holds_tokens(self) -> bool:
        """Whether anything of it depends on the ids."""
        roles = {role_of(filler) for _, filler in self.convention.call}
        return bool(self.convention.dicts) or not roles.isdisjoint(("ids", "source"))

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
    """What came of a call. If it does not work, `message` says why, and `error` is what it raised.

    `known`: how it is called, if it works, or if nothing moves what it returns.
    """

    known: WorkingCall | None
    message: str = ""
    error: Exception | None = None


class Height(NamedTuple):
    """How far a call came: whether it works, how many modules were left behind, and the operations since the last."""

    works: bool
    modules: int
    steps: int


class Altimeter(TorchFunctionMode):
    """Counts the modules of one call of a model that were run, the operations behind the last of them, and all."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.modules, self.steps, self.operations = model, 0, 0, 0

    def __enter__(self) -> Self:
        self._hooks = [self.model.register_forward_pre_hook(self._begin)]
        self._hooks += [m.register_forward_hook(self._leave) for m in self.model.modules() if m is not self.model]
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _begin(self, *_: object) -> None:
        self.modules, self.steps = 0, 0

    def _leave(self, *_: object) -> None:
        self.modules, self.steps = self.modules + 1, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.steps += 1
        self.operations += 1
        return func(*args, **(kwargs or {}))


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
        fewer, of_fewer = inputs, value
        if not convention.at_once:  # what takes one number of rows only may take them for tokens
            fewer = inputs.rows(torch.arange(FEWER - (inputs.ids.shape[1] == FEWER)))
            of_fewer = convention.raw(model, fewer)
    if attempted.failed:
        return Outcome(None, attempted.sentence(400), attempted.error)
    with attempt() as attempted, torch.no_grad():
        located = with_output(model, convention, inputs, value, sizes.get("ids"))
        if located is None and (located := _with_inner(model, convention, inputs, value, sizes.get("ids"))):
            value, of_fewer = (replace(located, drops_last=False).raw(model, batch) for batch in (inputs, fewer))
        if located is not None and located.gives == "tokens":
            located = _as_for_fewer(located, fewer, of_fewer)
        if located is None:
            shapes = [tuple(leaf.shape) for leaf in tensors(value)[:3]]
            return Outcome(None, f"given rows {tuple(inputs.ids.shape)} it returned {shapes or type(value).__name__}")
        logits = located.logits(model, inputs)
        if _is_given_back(follow(value, located.output), convention, inputs):
            return Outcome(None, "it returned what it was given")
        if _reads_its_labels(model, located, inputs, logits):
            return Outcome(None, "what it was given as labels moves its logits")
        if sizes and min(sizes.values()) <= FEW < max(sizes.values()):
            return Outcome(None, "an embedding of two or three rows reads its ids: it tells parts of a row apart")
        rearranged = reads and located.gives == "tokens" and (convention.at_once or convention.time_first)
        if rearranged and not any(influences(located.run_by(model), inputs)[:2]):
            return Outcome(None, "no token moves the logits of another")
        is_blind = (reads or located.inner) and not _differ(
            logits, located.logits(model, replace(inputs, ids=1 - inputs.ids))
        )
        if is_blind and located.inner:
            return Outcome(None, BLIND)
        V = sizes.get("ids") or logits.shape[-1]
        vocabs = {"ids": V, "source": sizes.get("source", V)}
        V, source_V = (vocabs[role] if located.reads_words(role) else WORDS for role in ("ids", "source"))
        T, S = inputs.ids.shape[1], tried.S if inputs.source is None else inputs.source.shape[1]
        known = _fitted(model, WorkingCall(located, T, S, V, source_V))
        if reads:  # what holds ids may be no tokens
            ordinary = known.inputs
            located.logits(model, ordinary)
            if not torch.equal(ordinary.ids, known.inputs.ids):
                return Outcome(None, "it writes into what holds ids")
        return Outcome(known, BLIND if is_blind else "")
    return Outcome(None, attempted.sentence(400), attempted.error)


def _as_for_fewer(located: Convention, fewer: Inputs, value: object) -> Convention | None:
    """With the axes that logits have if rows are not as many as tokens; None if they have none."""
    rows, T = fewer.ids.shape
    length = T - located.drops_last + located.adds_first
    output = follow(value, located.output)
    if arrange(output, rows, length) is None:
        return None
    is_turned = tuple(output.shape[:2]) == (length, rows) and not located.time_first
    return replace(located, returns_time_first=is_turned)


def _is_given_back(output: Tensor, convention: Convention, inputs: Inputs) -> bool:
    """Whether an output holds the numbers of one of the tensors that the model was given."""
    fillers = (filler_of(filler) for _, filler in convention.call)
    parts = (part for fill in fillers for part in tensors(fill(inputs, convention.time_first)))
    return any(torch.equal(part.flatten().to(output), output.flatten()) for part in parts)


def _reads_its_labels(model: nn.Module, convention: Convention, inputs: Inputs, logits: Tensor) -> bool:
    """Whether what is given as labels, and is required, moves the logits: then the model reads it. Ids are 0 and 1."""
    needed = {parameter.name for parameter in parameters_of(model) if parameter.default is parameter.empty}
    if not any(role_of(filler) == "labels" and name in needed for name, filler in convention.call):
        return False
    is_steady = not _differ(logits, convention.logits(model, inputs))
    return is_steady and _differ(logits, convention.logits(model, replace(inputs, labels=1 - inputs.ids)))


def _differ(first: Tensor, second: Tensor) -> bool:
    """Whether they differ, other than in their shape."""
    return first.shape == second.shape and not torch.allclose(first, second, equal_nan=True)


def _fitted(model: nn.Module, known: WorkingCall) -> WorkingCall:
    """With a vocabulary that it knows all tokens of: columns of a table may each have an embedding of their own."""
    smaller, fitted = known, None
    while fitted != smaller and not known.convention.reads_pictures:
        fitted = smaller
        with attempt() as attempted:
            fitted.convention.logits(model, fitted.inputs)
        if not isinstance(attempted.error, IndexError):
            return fitted
        V, source_V = (max(SMALL, size // 2) for size in (fitted.vocab_size, fitted.source_vocab_size))
        smaller = replace(fitted, vocab_size=V, source_vocab_size=source_V)
    return known


def with_output(
    model: nn.Module, convention: Convention, inputs: Inputs, value: object, vocab_size: int | None
) -> Convention | None:
    """The convention with the path to its logits in what it returned; None if nothing there has their shape."""
    rows = len(inputs.ids)
    located = _with_logits(convention, inputs, value, vocab_size)
    if located is not None and _is_of_tokens(model, located, inputs, value):
        return located
    path = find_row_output(value, 0 if convention.unbatched else rows, whole=convention.reads_numbers)
    if path is None:
        return None
    if convention.at_once:
        changed = replace(inputs, ids=torch.cat([1 - inputs.ids[:1], inputs.ids[1:]]))
        mixes = rows > 1 and _differ(follow(convention.raw(model, changed), path)[1:], follow(value, path)[1:])
        return None if mixes else replace(convention, output=path, gives="rows")  # else its rows are tokens
    fewer = inputs.rows(torch.arange(rows - 2))
    with attempt() as attempted, torch.no_grad():
        shape = tuple(follow(convention.raw(model, fewer), path).shape)
    if attempted.failed or shape[0] != rows - 2:  # nothing tells its rows from its tokens
        return None
    grows = len(shape) == 2 and shape[1] == rows - 2 and follow(value, path).shape[1] == rows
    return replace(convention, output=path, gives="pairs" if grows else "rows")


def _is_of_tokens(model: nn.Module, located: Convention, inputs: Inputs, value: object) -> bool:
    """Whether logits are those of tokens. Of one number for each, there have to be more in longer rows."""
    output = follow(value, located.output)
    if output.dim() > 2 or len(output) != len(inputs.ids):
        return True
    with attempt(), torch.no_grad():
        longer = follow(located.raw(model, inputs.longer), located.output)
        return bool(longer.shape[1] == output.shape[1] + 1)
    return False  # it takes rows of one length, so that nothing tells


def _with_inner(
    model: nn.Module, convention: Convention, inputs: Inputs, value: object, vocab_size: int | None
) -> Convention | None:
    """The same where nothing is returned, or single numbers such as losses: the last module gives logits."""
    if any(part.numel() > 1 for part in tensors(value)) or convention.reads_pictures:  # parts may be hidden inside
        return None
    weighted = [name for name, module in model.named_modules() if name and next(module.parameters(), None) is not None]
    with recorded_outputs(model, weighted) as outputs:
        convention.raw(model, inputs)
    tries = (
        _with_logits(replace(convention, inner=name), inputs, (output,), vocab_size)
        for name, output in reversed(outputs.items())
    )
    return next(filter(None, tries), None)


def _with_logits(convention: Convention, inputs: Inputs, value: object, vocab_size: int | None) -> Convention | None:
    """The convention with the path to the logits of tokens in a value; None if nothing there has their shape."""
    rows, columns = inputs.ids.shape
    for drops_last, adds_first in ((False, False), (True, False), (False, True)):
        path = find_logits(value, rows, columns - drops_last + adds_first, vocab_size)
        if path is not None:
            return replace(convention, output=path, drops_last=drops_last, adds_first=adds_first)
    return None


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
