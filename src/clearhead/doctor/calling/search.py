"""The search for a way to call a model: names suggest calls, and what the model does with them decides."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.axes import Axes, axes_of, influences
from clearhead.doctor.calling.convention import Convention, mask_types_of, with_numbers
from clearhead.doctor.calling.inputs import CAUSAL_FORMS, Inputs, role_of
from clearhead.doctor.calling.lengths import Lengths, length_of_source, lengths_for
from clearhead.doctor.calling.names import (
    CONTAINER,
    MASK,
    PADDING,
    TARGET,
    Call,
    parameters_of,
    says_time_first,
    suggestions,
)
from clearhead.doctor.calling.numbers import PLACES, WORDS, is_picture
from clearhead.doctor.calling.outputs import find_logits, find_row_output, follow, tensors
from clearhead.doctor.load.unwrap import remedy
from clearhead.doctor.problems import attempt
from clearhead.doctor.spec import Spec
from clearhead.doctor.state_guard import CPU
from clearhead.errors import DataError

ROWS = 5
MANY = 40  # failed calls, after which only two lengths are tried each
SMALL = 2  # ids below this exist in every vocabulary
FEW = 3  # rows of an embedding that tells parts of a row apart, beside one of words
OTHER_LENGTH = (AssertionError, IndexError, ValueError, RuntimeError, NameError)  # another length may avoid these

ADAPTER = """
class Adapted(torch.nn.Module):
    def __init__(self): super().__init__(); self.model = build()
    def forward(self, ids):  # (B, T) token ids; a second parameter 'source' (B, S) where there is one
        return self.model(ids)  # change this line: it must return logits (B, T, V)
def adapted(): return Adapted()"""


@dataclass(frozen=True)
class WorkingCall:
    """A convention that works, with the lengths and vocabularies that it works for, and what its axes mean."""

    convention: Convention
    T: int
    S: int
    vocab_size: int
    source_vocab_size: int
    axes: Axes

    @property
    def inputs(self) -> Inputs:
        """Random rows."""
        return _inputs(self.T, self.S, self.vocab_size, self.source_vocab_size)


def find_convention(
    model: nn.Module,
    spec: Spec,
    *,
    may_be_causal: bool = True,
    may_have_source: bool = True,
    short: bool = False,
    named: Sequence[str] = (),
    lengths: Sequence[int] = (),
) -> WorkingCall:
    """How `model` must be called, proved by calling it.

    Args:
        spec: its `time_first` is believed.
        may_have_source: whether it may read a source beside its tokens; if nothing else works, it may all the same.
        may_be_causal: whether a mask that the model takes may hide the future; that of a target always may.
        short: try short rows first.
        named: parameters that take tokens, from the names in a batch of the person.
        lengths: of rows to try if none of the usual ones works.

    Raises:
        DataError: no call leads to logits; the sentence holds an adapter ready to paste.
    """
    problems: list[str] = []
    known, usual = None, lengths_for(model, short=short)
    plain, beside, placed = (_candidates(model, spec, named) for _ in range(3))
    beside = (convention for convention in beside if convention.has_source)
    without = (c for c in (() if may_have_source else _candidates(model, spec, named)) if not c.has_source)
    tries = ((without, False), (plain, False), (beside, True), (with_numbers(model, placed), False))
    for candidates, equal in tries:
        allowed = (c for c in candidates if may_be_causal or c.has_source or not _mentions(c, "causal"))
        known = _choose(model, spec, allowed, Lengths(usual, lengths, equal), problems)
        if known is not None:
            break
    if known is None:
        message = problems[0] if problems else "nothing it returned has the shape of logits"
        if remedy(message):
            raise DataError(f"{type(model).__name__} cannot be called ({message}); {remedy(message)}")
        raise DataError(
            f"no way was found to call {type(model).__name__} with token ids ({message}); put this beside your model, "
            f"change one line, and examine 'adapted' instead:{ADAPTER}"
        )
    if known.convention.gives != "tokens":
        return _with_axes(model, known)
    known = known if spec.time_first is not None else _with_order(model, known)
    wants_mask = (spec.kind == "causal" and may_be_causal) or known.convention.has_source
    return _with_causal_mask(model, known) if wants_mask else known


def _mentions(convention: Convention, *masks: str) -> bool:
    """Whether a parameter is filled with such a mask."""
    return any(mask in filler for mask in masks for _, filler in convention.call)


def _choose(
    model: nn.Module, spec: Spec, candidates: Iterator[Convention], lengths: Lengths, problems: list[str]
) -> WorkingCall | None:
    """The candidate whose masks work best; one that gives logits of tokens before one that gives them of rows."""
    best: dict[bool, tuple[int, WorkingCall]] = {}  # by whether it gives logits of tokens
    failed: list[str] = []
    for convention in candidates:
        if True in best and _roles(convention.call) != _roles(best[True][1].convention.call):
            continue
        tried = lengths.usual[: None if len(failed) < MANY else 2]
        known = _try(model, convention, lengths._replace(usual=tried), failed)
        if known is None:
            continue
        has_masks, score = _mentions(convention, "keep", "causal"), _score(model, known, spec)
        of_tokens = known.convention.gives == "tokens"
        if of_tokens not in best or score > best[of_tokens][0]:
            best[of_tokens] = (score, known)
        if (not has_masks or score >= 4) if of_tokens else (not has_masks and score >= 3 and True not in best):
            break
    problems += failed
    chosen = best.get(True) or best.get(False)
    return None if chosen is None else chosen[1]


def _with_causal_mask(model: nn.Module, known: WorkingCall) -> WorkingCall:
    """If the future reaches back: with the mask that the model takes from its caller and that prevents it."""
    if known.convention.as_dict or not influences(known.convention.run_by(model), known.inputs)[1]:
        return known
    for name in (parameter.name for parameter in parameters_of(model)):
        of_source = known.convention.has_source and not TARGET.search(name)
        if not MASK.search(name) or PADDING.search(name) or of_source or name in dict(known.convention.call):
            continue
        for form in CAUSAL_FORMS:
            convention = replace(known.convention, call=(*known.convention.call, (name, f"causal: {form}")))
            with attempt():  # it may take a mask of another form
                ahead, behind, finite = influences(convention.run_by(model), known.inputs)
                if finite and ahead and not behind:
                    return replace(known, convention=convention)
    return known


def _candidates(model: nn.Module, spec: Spec, named: Sequence[str]) -> Iterator[Convention]:
    first = next(chain(model.parameters(), model.buffers()), None)
    device = CPU if first is None else first.device
    orders = (False, True) if spec.time_first is None else (spec.time_first,)
    mask_types = mask_types_of(model)
    for call in suggestions(model, named):
        for time_first in orders:
            yield Convention(call, time_first=time_first, device=device, mask_types=mask_types)
    names = [parameter.name for parameter in parameters_of(model)]
    if len(names) <= 1 or CONTAINER.match(names[0]):
        for call in ((("", "ids"),), (("", "source"), ("", "ids"))):
            yield Convention(call, as_dict=True, time_first=orders[0], device=device)


def _roles(call: Call) -> tuple[str, ...]:
    return tuple(role for _, filler in call if (role := role_of(filler)) in ("ids", "source", "labels"))


def _try(model: nn.Module, convention: Convention, lengths: Lengths, problems: list[str]) -> WorkingCall | None:
    """Call it with rows of several lengths until one works."""
    pictures = {role_of(filler) for _, filler in convention.call if is_picture(filler)}
    for T in (PLACES,) if "ids" in pictures else dict.fromkeys((*lengths.usual, *lengths.more)):
        S = PLACES if "source" in pictures else T if lengths.equal else length_of_source(T, model)
        inputs = _inputs(T, S, SMALL, SMALL)
        inputs = inputs if convention.has_source else replace(inputs, source=None)
        with attempt() as attempted, _vocabularies(model, inputs) as sizes, torch.no_grad():
            value = convention.raw(model, inputs)
            if ROWS in (T, S):  # a square may have been taken for a number in each row
                convention.raw(model, inputs.rows(torch.arange(ROWS - 2)))
        if attempted.failed:
            problems.append(attempted.sentence())
            if not isinstance(attempted.error, OTHER_LENGTH):
                return None
            continue
        located = _with_output(model, convention, inputs, value, sizes.get("ids"))
        if located is None:
            shapes = [tuple(leaf.shape) for leaf in tensors(value)[:3]]
            problems.append(f"given ids {(ROWS, T)} it returned {shapes or type(value).__name__}")
            return None
        if _reads_its_labels(model, located, inputs):
            problems.append("what it was given as labels moves its logits")
            return None
        if sizes and min(sizes.values()) <= FEW < max(sizes.values()):
            problems.append("one of its inputs has an embedding of two or three rows: it tells parts of a row apart")
            return None
        V = sizes.get("ids") or located.logits(model, inputs).shape[-1]
        known = {"ids": V, "source": sizes.get("source", V)}
        V, source_V = (known[role] if located.reads_words(role) else WORDS for role in ("ids", "source"))
        return WorkingCall(located, T, S, V, source_V, Axes())
    return None


def _reads_its_labels(model: nn.Module, convention: Convention, inputs: Inputs) -> bool:
    """Whether what is given as labels, and is required, moves the logits: then the model reads it. Ids are 0 and 1."""
    needed = {parameter.name for parameter in parameters_of(model) if parameter.default is parameter.empty}
    if not any(role_of(filler) == "labels" and name in needed for name, filler in convention.call):
        return False
    batches = (inputs, inputs, replace(inputs, labels=1 - inputs.ids))
    with torch.no_grad():
        before, again, after = (convention.logits(model, batch) for batch in batches)
    is_steady = before.shape == again.shape and torch.allclose(before, again, equal_nan=True)
    return is_steady and before.shape == after.shape and not torch.allclose(before, after, equal_nan=True)


def _with_output(
    model: nn.Module, convention: Convention, inputs: Inputs, value: object, vocab_size: int | None
) -> Convention | None:
    """The convention with the path to its logits in what it returned; None if nothing there has their shape."""
    rows, columns = inputs.ids.shape
    for drops_last in (False, True):
        path = find_logits(value, rows, columns - drops_last, vocab_size)
        if path is not None:
            return replace(convention, output=path, drops_last=drops_last)
    path = find_row_output(value, rows)
    if path is None:
        return None
    fewer = inputs.rows(torch.arange(rows - 2))
    with attempt() as attempted, torch.no_grad():
        shape = tuple(follow(convention.raw(model, fewer), path).shape)
    if attempted.failed or shape[0] != rows - 2:  # nothing tells its rows from its tokens
        return None
    grows = len(shape) == 2 and shape[1] == rows - 2 and follow(value, path).shape[1] == rows
    return replace(convention, output=path, gives="pairs" if grows else "rows")


def _inputs(T: int, S: int, V: int, source_V: int) -> Inputs:
    """Random rows; in a vocabulary of the smallest size, of the tokens 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0 if V <= SMALL else min(4, V // 2), V, (ROWS, T), generator=generator)
    source = torch.randint(min(4, source_V // 2), source_V, (ROWS, S), generator=generator)
    return Inputs(ids, source, labels=ids)


@contextmanager
def _vocabularies(model: nn.Module, inputs: Inputs) -> Iterator[dict[str, int]]:
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


def _score(model: nn.Module, known: WorkingCall, spec: Spec) -> int:
    """How much the outputs look as if every mask was understood."""
    with attempt() as attempted:
        ahead, behind, finite = influences(known.convention.run_by(model), known.inputs)
    if attempted.failed or not finite:  # it takes masks of other forms
        return -1
    causal_wanted = spec.kind != "bidirectional" or known.convention.has_source
    if ahead and not behind:
        return 4 if causal_wanted else 2
    if ahead:
        return 3 if causal_wanted else 4
    return 1 if behind else 0


def _with_order(model: nn.Module, known: WorkingCall) -> WorkingCall:
    """Batch first or time first, where both can be called: by the axis along which tokens meet."""
    known = _with_axes(model, known)
    axes = known.axes
    by_words = axes.mixing == {0} and axes.forward_only and says_time_first(model)
    if not known.convention.time_first and (axes.are_time_first or by_words):
        return replace(known, convention=replace(known.convention, time_first=True), axes=axes.swapped)
    return known


def _with_axes(model: nn.Module, known: WorkingCall) -> WorkingCall:
    with attempt():
        return replace(known, axes=axes_of(known.convention.run_by(model), known.inputs))
    return known  # the axes cannot be told apart
