"""Padding: what stands there must not matter to real tokens, nor how much of it there is."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead.doctor.calling.docs import keeps_what_is_true
from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import LENGTHS, PADDING
from clearhead.doctor.checks.base import BASE, Causes, Skipped, finding, model_check
from clearhead.doctor.checks.basics import first_spoilt
from clearhead.doctor.checks.locations import attention_place
from clearhead.doctor.checks.padding.amounts import amounts
from clearhead.doctor.checks.padding.behind import behind
from clearhead.doctor.checks.padding.masks import (
    MASK_NAMES,
    THRESHOLD,
    both_batches,
    declared_polarity,
    forms_of,
    hiding_form,
    keeps_what_is_one,
    mask_parameters,
    masked_run,
    moved,
    moved_under,
    padded_batch,
    padding_masks,
)
from clearhead.doctor.checks.padding.padding_tokens import (
    LENGTH_THRESHOLD,
    POOLED,
    by_token,
    in_front,
    own_mixer,
    pooled_at,
    where_not_given,
)
from clearhead.doctor.probes.attention import HIDDEN, AttentionCall, attentions
from clearhead.doctor.probes.localization import kept_reading, locate
from clearhead.doctor.probes.tracing import recorded_modules, recorded_ops
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding, Status, Where
from clearhead.doctor.state_guard import SCALE, scaled
from clearhead.doctor.subject import Subject

PADDING_FAULTS = ("M07", "M08", "M11", "M12", "M13", "M14", "M15", "M20", "M22", "A10", "P02", "S01")

SURE = 1e-5  # the same: beyond any rounding
FAINT = 1e-6  # the same: what a real mask hides moves nothing, to the last bit or nearly so
PLAIN = "attention_mask"


@model_check(
    "M11",
    "paddings",
    order=160,
    covers=PADDING_FAULTS,
    holds="tokens under a padding mask move no real token's logits",
    needs=(*BASE, "layouts", "norms"),
)
def paddings(subject: Subject) -> list[Finding]:
    """Under every mask parameter, in one of the forms that people use, other tokens move no logit of a real one."""
    masks = mask_parameters(subject)
    findings: list[Finding] = []
    unknown: list[str] = []  # parameters that take a mask in no form that is known
    together: set[tuple[str, bool]] = set()  # masks that hide padding where others of their side do as well
    settled: set[bool] = set()  # sides whose plain mask hides padding: what else is a mask there means something else
    for name, source in sorted(masks, key=lambda mask: mask[0] != PLAIN):
        if name.endswith(f"_{PLAIN}") and source in settled:
            continue
        if (name, source) in together:
            continue
        mine = _by_parameter(subject, (name,), source)
        if mine is None:
            unknown.append(name)
            continue
        beside = [other for other, of_source in masks if of_source == source and PADDING.search(other)]
        names = dict.fromkeys((name, *beside))
        if mine and len(names) > 1 and hiding_form(subject, tuple(names), source):
            mine = (
                _by_parameter(subject, tuple(names), source) or []
            )  # one is for self-attention, another for what reads it
            together |= {(other, source) for other in beside}
        settled |= {source} if name == PLAIN and not mine else set()
        findings += mine
    if not masks and subject.pad_id is not None and not subject.convention.as_dict:
        if not subject.looks_back_only:
            findings += by_token(subject, source=False)
        if subject.convention.has_source:
            findings += by_token(subject, source=True)
        if subject.looks_back_only:
            findings += in_front(subject)
    elif masks and not findings and subject.pad_id is not None and not subject.convention.as_dict:
        findings += where_not_given(subject, masks, {source for _, _, source in padding_masks(subject)})
    elif not masks:
        raise Skipped("it takes no padding mask, and no padding token is known")
    if unknown and len(unknown) == len(masks) and not findings:
        raise Skipped(f"'{unknown[0]}' takes a mask in none of the forms that are known")
    return findings


def _by_parameter(subject: Subject, names: Sequence[str], source: bool) -> list[Finding] | None:
    """What is wrong with a parameter, or with the first of some that are given the same mask; None if none fits."""
    batch = padded_batch(subject, source)
    moves: dict[str, float] = {}
    broken: list[str] = []
    name = names[0]
    expected = next((declared for declared in map(declared_polarity, names) if declared is not None), None)
    documented = keeps_what_is_true(subject.original, name) if expected is None else None
    expected = documented if expected is None else expected
    if LENGTHS.search(name) and subject.looks_back_only and not source:
        return behind(subject, name)  # a length means padding behind, which nothing looks back from
    for form in forms_of(name):
        with attempt() as attempted:
            moves[form] = moved_under(subject, names, form, source)
        if isinstance(attempted.error, FloatingPointError):
            broken.append(form)
        elif attempted.failed:  # it takes a mask of another form
            continue
        elif moves[form] <= FAINT and expected in (None, keeps_what_is_one(form)):
            break  # no other form can hide it better
    meant = [form for form in (*moves, *broken) if expected is None or keeps_what_is_one(form) == expected]
    if meant and all(form in broken for form in meant):
        witness = f"with {name} ({meant[0]}) and padding in front, logits of real tokens are not finite"
        where = _first_spoilt(subject, batch, names, meant[0], source)
        turned = any(value <= THRESHOLD for form, value in moves.items() if form not in meant)
        return [finding((("M12", 0.8), ("M14", 0.2)) if turned else (("M14", 0.8), ("M12", 0.2)), witness, where=where)]
    if not moves:
        return None  # it is another kind of mask
    inert = [form for form, value in moves.items() if value <= THRESHOLD]
    right = [form for form in inert if expected is None or keeps_what_is_one(form) == expected]
    if right:
        subject.journal.paths.append(f"{' and '.join(names)} ({right[0]})")
        best = min(right, key=lambda form: moves[form])
        return _outweighed(subject, batch, names, best, source) or amounts(
            subject, batch, masked_run(subject, names, best, source), name, source=source
        )
    if not inert and name in MASK_NAMES and (documented is None or subject.looks_back_only):
        return []  # it need not be about padding
    form = min(
        (form for form in moves if expected is None or keeps_what_is_one(form) == expected),
        key=moves.__getitem__,
        default="",
    )
    form = form or next(iter(moves))
    if inert:
        polarity = "1 for real tokens" if expected else "True for padding"
        witness = f"with {name} as {polarity}, other tokens under the padding move real logits by {moves[form]:.1e}"
        causes: Causes = (("M12", 0.9), ("M11", 0.1))
        return [finding(causes, witness, value=moves[form], threshold=THRESHOLD, where=attention_place(subject))]
    mixer = own_mixer(subject)
    witness = f"other tokens under {name} move the logits of real tokens by {moves[form]:.1e} of their spread"
    witness += f"; {mixer} mixes tokens, and knows no mask" if mixer else ""
    where, causes = _blame(subject, *batch, names, form, source)
    causes = POOLED if where == pooled_at(subject, source=source) else causes
    status: Status = "warn" if mixer else "fail"
    return [finding(causes, witness, value=moves[form], threshold=THRESHOLD, where=where, status=status)]


def _first_spoilt(
    subject: Subject, batch: tuple[Inputs, Tensor, Tensor], names: Sequence[str], form: str, source: bool
) -> Where:
    """The module that makes NaN of numbers under this mask; else the first attention."""
    with subject.quiet(), recorded_modules(subject.model) as calls:
        masked_run(subject, names, form, source)(both_batches(*batch, source)[0])
    spoilt = first_spoilt(calls)
    return attention_place(subject) if spoilt == Where() else spoilt


def _blame(
    subject: Subject, inputs: Inputs, keep: Tensor, changed: Tensor, names: Sequence[str], form: str, source: bool
) -> tuple[Where, Causes]:
    """The first module in which a real token reads padding, and why it does."""
    inputs, other = both_batches(inputs, keep, changed, source)
    run = masked_run(subject, names, form, source)
    with subject.quiet():
        where, call = locate(subject.model, run, inputs, other, kept_reading(keep), lambda alive: bool(alive.any()))
        with recorded_ops() as ops:
            base = run(inputs)
        open_ = keep.clone()
        open_[0] = True  # without padding in row 0
        moved = run(inputs.with_keep(source, open_))[2] - base[2]
    if float(moved.abs().max()) > THRESHOLD * float(base.std()):
        return where, (("M15", 0.8), ("A10", 0.2))
    if any(_hides_queries(attention, keep) for attention in attentions(ops.calls)):
        return where, (("M13", 0.8), ("M11", 0.2))
    first = 0 if subject.convention.time_first else 1
    crossing = call is not None and any(subject.calling.T in tensor.shape[first:] for tensor in call.outputs)
    if source and (call is None or crossing):
        return where, (("S01", 0.7), ("M11", 0.2), ("M13", 0.1))
    return where, (("M11", 0.7), ("M13", 0.2), ("S01", 0.1))


def _hides_queries(attention: AttentionCall, keep: Tensor) -> bool:
    """Whether in the first row padding may see nothing, and may itself be seen."""
    if attention.scores is None or attention.scores.shape[1:] != (keep.shape[1],) * 2:
        return False
    hidden = attention.scores[0] < HIDDEN  # (T, T)
    return bool(hidden.any()) and torch.equal(hidden, (~keep[0])[:, None].expand_as(hidden))


def _outweighed(
    subject: Subject, batch: tuple[Inputs, Tensor, Tensor], names: Sequence[str], form: str, source: bool
) -> list[Finding]:
    """A mask that is a number: padding comes through it, a little now, and all of it once scores have grown."""
    name = names[0]
    faint = moved_under(subject, names, form, source)
    if faint > SURE or (faint > FAINT and _is_there_in_double(subject, *batch, names, form, source)):
        where, _ = _blame(subject, *batch, names, form, source)
        witness = f"other tokens under {name} still move the logits of real tokens, by {faint:.1e} of their spread"
        return [finding((("M08", 0.8), ("M11", 0.2)), witness, value=faint, threshold=FAINT, where=where)]
    try:
        with scaled(subject.model):
            value = moved(subject, *batch, names, form, source)
    except FloatingPointError:
        return []
    if value <= LENGTH_THRESHOLD:
        return []
    where = attention_place(subject)
    witness = f"with matrices {SCALE:g} times as large, other tokens under {name} move real logits by {value:.1e}"
    return [finding("M08", witness, value=value, threshold=LENGTH_THRESHOLD, where=where, status="warn")]


def _is_there_in_double(subject: Subject, *question: Any) -> bool:
    """Whether padding comes through where numbers differ by 1e-16 only: what shares a batch may round otherwise."""
    with attempt(), subject.precise():
        return moved(subject, *question) > FAINT
    return False  # some operations know no float64: it is a tie-breaker, never a verdict by itself
