"""The search for a way to call a model: names suggest calls, and what the model does with them decides."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import nn

from clearhead.doctor.calling.adapters import adapter_for
from clearhead.doctor.calling.axes import axes_of, influences
from clearhead.doctor.calling.climbing import climbed
from clearhead.doctor.calling.convention import Convention, mask_types_of
from clearhead.doctor.calling.inputs import CAUSAL_FORMS, role_of
from clearhead.doctor.calling.lengths import Lengths, length_of_source, lengths_for
from clearhead.doctor.calling.names import (
    MASK,
    PADDING,
    SOURCE,
    Call,
    parameters_of,
    says_time_first,
    suggestions,
)
from clearhead.doctor.calling.settings import settings_of
from clearhead.doctor.calling.trial import ROWS, CallAttempt, WorkingCall, try_call
from clearhead.doctor.load.unwrap import remedy
from clearhead.doctor.problems import attempt
from clearhead.doctor.spec import Spec
from clearhead.doctor.state_guard import CPU
from clearhead.errors import DataError

MANY, TOO_MANY = 40, 400  # failed calls, after which only two lengths are tried each, and after which none is
OTHER_LENGTH = (AssertionError, IndexError, ValueError, RuntimeError, NameError)  # another length may avoid these


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
    plain, beside = (_candidates(model, spec, named) for _ in range(2))
    beside = (convention for convention in beside if convention.has_source)
    without = (c for c in (() if may_have_source else _candidates(model, spec, named)) if not c.has_source)
    tries = ((without, False), (plain, False), (beside, True))
    for candidates, equal in tries:
        allowed = (c for c in candidates if may_be_causal or c.has_source or not _mentions(c, "causal"))
        known = _choose(model, spec, _suggested(model, allowed, Lengths(usual, lengths, equal), problems))
        if known is not None:
            break
    if known is None:
        start = Convention((), device=_device_of(model), mask_types=mask_types_of(model))
        known = _choose(model, spec, climbed(model, start, usual, problems))
    if known is None:
        name, problem = type(model).__name__, problems[0]
        if remedy(problem):
            raise DataError(f"{name} cannot be called {problem}; {remedy(problem)}")
        raise DataError(
            f"no way was found to call {name} {problem}; put this beside your model, "
            f"change one line, and examine 'adapted' instead:",
            below=adapter_for(model),
        )
    known = _with_finite_masks(model, known)
    if known.convention.gives != "tokens":
        return _with_axes(model, known)
    known = known if spec.time_first is not None else _with_order(model, known, usual)
    wants_mask = (spec.kind == "causal" and may_be_causal) or known.convention.has_source
    return _with_causal_mask(model, known) if wants_mask else known


def _device_of(model: nn.Module) -> torch.device:
    first = next(chain(model.parameters(), model.buffers()), None)
    return CPU if first is None else first.device


def _mentions(convention: Convention, *masks: str) -> bool:
    """Whether a parameter is filled with such a mask."""
    return any(mask in filler for mask in masks for _, filler in convention.call)


def _suggested(
    model: nn.Module, candidates: Iterable[Convention], lengths: Lengths, problems: list[str]
) -> Iterator[WorkingCall]:
    """Those of the candidates that work with rows of one of the lengths."""
    failed: list[str] = []
    for convention in candidates:
        if len(failed) > TOO_MANY:
            break
        usual = lengths.usual if len(failed) < MANY else (lengths.usual[0], min(lengths.usual[:4]))
        for T in dict.fromkeys((*usual, *lengths.more)):
            outcome = try_call(model, CallAttempt(convention, T, T if lengths.equal else length_of_source(T, model)))
            if outcome.known is not None:
                yield outcome.known
                break
            failed.append(outcome.message)
            if not isinstance(outcome.error, OTHER_LENGTH):
                break
    problems += failed


def _choose(model: nn.Module, spec: Spec, calls: Iterable[WorkingCall]) -> WorkingCall | None:
    """The call whose masks work best; one that gives logits of tokens before one that gives them of rows."""
    best: dict[bool, tuple[int, WorkingCall]] = {}  # by whether it gives logits of tokens
    for known in calls:
        of_tokens = known.convention.gives == "tokens"
        if True in best and _roles(known.convention.call) != _roles(best[True][1].convention.call):
            continue
        has_masks, score = _mentions(known.convention, "keep", "causal"), _score(model, known, spec)
        if of_tokens not in best or score > best[of_tokens][0]:
            best[of_tokens] = (score, known)
        if (not has_masks or score >= 4) if of_tokens else (not has_masks and score >= 3 and True not in best):
            break
    chosen = best.get(True) or best.get(False)
    return chosen and chosen[1]


def _with_finite_masks(model: nn.Module, known: WorkingCall) -> WorkingCall:
    """If its logits are no numbers: with masks that say the same as booleans or fractions, and make numbers of them."""
    if not _mentions(known.convention, "keep: 1 keeps"):
        return known
    for form in ("1 keeps", "True keeps", "1.0 keeps"):  # ~1 is -2, which is true
        call = tuple((name, filler.replace("keep: 1 keeps", f"keep: {form}")) for name, filler in known.convention.call)
        tried = replace(known, convention=replace(known.convention, call=call))
        with attempt() as attempted:
            finite = bool(tried.convention.logits(model, known.inputs).isfinite().all())
        if not attempted.failed and finite:
            return tried
    return known


def _with_causal_mask(model: nn.Module, known: WorkingCall) -> WorkingCall:
    """If the future reaches back: with the mask that the model takes from its caller and that prevents it."""
    with attempt() as attempted:
        is_open = influences(known.convention.run_by(model), known.inputs)[1]
    if attempted.failed or known.convention.dicts or not is_open:
        return known
    for name in (parameter.name for parameter in parameters_of(model)):
        if not MASK.search(name) or PADDING.search(name) or SOURCE.search(name) or name in dict(known.convention.call):
            continue
        for form in CAUSAL_FORMS:
            convention = replace(known.convention, call=(*known.convention.call, (name, f"causal: {form}")))
            with attempt():  # it may take a mask of another form
                ahead, behind, finite = influences(convention.run_by(model), known.inputs)
                if finite and ahead and not behind:
                    return replace(known, convention=convention)
    return known


def _candidates(model: nn.Module, spec: Spec, named: Sequence[str]) -> Iterator[Convention]:
    device = _device_of(model)
    orders = (False, True) if spec.time_first is None else (spec.time_first,)
    mask_types = mask_types_of(model)
    limits = [count for part in model.modules() if type(count := settings_of(part).get("max_batch_size")) is int]
    at_once = min((count for count in limits if 0 < count < ROWS), default=0)  # a cache of its own holds no more rows
    for call in suggestions(model, named):
        for time_first in orders:
            yield Convention(call, time_first=time_first, device=device, mask_types=mask_types, at_once=at_once)


def _roles(call: Call) -> tuple[str, ...]:
    return tuple(role for _, filler in call if (role := role_of(filler)) in ("ids", "source", "labels"))


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


def _with_order(model: nn.Module, known: WorkingCall, lengths: Sequence[int]) -> WorkingCall:
    """Batch first or time first, where both can be called: by the axis along which tokens meet."""
    known = _with_axes(model, known)
    axes = known.axes
    if known.convention.time_first and axes.are_time_first:  # batch first was tried with rows that are too long
        convention = replace(known.convention, time_first=False)
        attempts = (CallAttempt(convention, T, length_of_source(T, model)) for T in lengths)
        other = next((outcome.known for tried in attempts if (outcome := try_call(model, tried)).known), known)
        return _with_axes(model, other)
    by_words = axes.mixing == {0} and axes.forward_only and says_time_first(model)
    if not known.convention.time_first and (axes.are_time_first or by_words):
        return replace(known, convention=replace(known.convention, time_first=True), axes=axes.swapped)
    return known


def _with_axes(model: nn.Module, known: WorkingCall) -> WorkingCall:
    with attempt():
        return replace(known, axes=axes_of(known.convention.run_by(model), known.inputs))
    return known  # the axes cannot be told apart
