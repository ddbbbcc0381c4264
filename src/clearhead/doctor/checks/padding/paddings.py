"""Padding: what stands there must not matter to real tokens, nor how much of it there is."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead.doctor.calling.docs import keeps_what_is_true
from clearhead.doctor.calling.inputs import KEEP_FORMS, Inputs, Run, keep_filler, role_of
from clearhead.doctor.calling.names import CACHE, LENGTHS, MASK, PADDING, is_of_source, parameters_of
from clearhead.doctor.checks.base import Causes, Skipped, finding
from clearhead.doctor.checks.basics import first_spoilt
from clearhead.doctor.checks.locations import attention_place
from clearhead.doctor.checks.padding.amounts import amounts
from clearhead.doctor.checks.padding.behind import behind
from clearhead.doctor.checks.padding.padding_tokens import (
    LENGTH_THRESHOLD,
    POOLED,
    ROWS,
    by_token,
    in_front,
    own_mixer,
    pooled_at,
    where_not_given,
)
from clearhead.doctor.probes.attention import HIDDEN, Attention, attentions
from clearhead.doctor.probes.localization import kept_reading, locate
from clearhead.doctor.probes.tracing import recorded_modules, recorded_ops
from clearhead.doctor.report.findings import Finding, Status, Where
from clearhead.doctor.state_guard import SCALE, scaled
from clearhead.doctor.subject import Subject

THRESHOLD = 1e-4  # of the logits' spread: rounding stays far below
SURE = 1e-5  # the same: beyond any rounding
FAINT = 1e-6  # the same: what a real mask hides moves nothing, to the last bit or nearly so
ELSEWHERE = re.compile(r"^(encoder|cross|memory)")  # of a source, where there is one
PLAIN = "attention_mask"
MASK_NAMES = ("mask", "src_mask", "source_mask", "tgt_mask", "trg_mask")


def paddings(subject: Subject) -> list[Finding]:
    """Under every mask parameter, in one of the forms that people use, other tokens move no logit of a real one."""
    masks = mask_parameters(subject)
    found: list[Finding] = []
    together: set[tuple[str, bool]] = set()  # masks that hide padding where others of their side do as well
    settled: set[bool] = set()  # sides whose plain mask hides padding: what else is a mask there means something else
    for name, source in sorted(masks, key=lambda mask: mask[0] != PLAIN):
        if name.endswith(f"_{PLAIN}") and source in settled:
            continue
        if (name, source) in together:
            continue
        mine = _by_parameter(subject, (name,), source)
        beside = [other for other, of_source in masks if of_source == source and PADDING.search(other)]
        names = dict.fromkeys((name, *beside))
        if mine and len(names) > 1 and _hiding_form(subject, tuple(names), source):
            mine = _by_parameter(subject, tuple(names), source)  # one is for self-attention, another for what reads it
            together |= {(other, source) for other in beside}
        settled |= {source} if name == PLAIN and not mine else set()
        found += mine
    if not masks and subject.pad_id is not None and not subject.convention.as_dict:
        if not subject.looks_back_only:
            found += by_token(subject, source=False)
        if subject.convention.has_source:
            found += by_token(subject, source=True)
        if subject.looks_back_only:
            found += in_front(subject)
    elif masks and not found and subject.pad_id is not None and not subject.convention.as_dict:
        found += where_not_given(subject, masks, {source for _, _, source in padding_masks(subject)})
    elif not masks:
        raise Skipped("it takes no padding mask, and no padding token is known")
    return found


def padding_masks(subject: Subject) -> list[tuple[str, str, bool]]:
    """The parameters that take one, with a form under which padding is inert, and whether they are the source's."""
    tried = [(name, _hiding_form(subject, (name,), source), source) for name, source in mask_parameters(subject)]
    return [(name, form, source) for name, form, source in tried if form is not None]


def _hiding_form(subject: Subject, names: Sequence[str], source: bool) -> str | None:
    """The first form of a mask under which, given as these parameters, padding is inert."""
    for form in forms_of(names[0]):
        try:
            if _moved_under(subject, names, form, source) <= THRESHOLD:
                return form
        except Exception:
            continue
    return None


def forms_of(name: str) -> tuple[str, ...]:
    """The forms that a mask of this name may have; lengths are told by their name, and are nothing else."""
    return ("lengths",) if LENGTHS.search(name) else tuple(KEEP_FORMS)


def mask_parameters(subject: Subject) -> list[tuple[str, bool]]:
    """Parameters that seem to take a padding mask, and whether it is the source's."""
    call = dict(subject.convention.call)
    roles = {name: role for name, filler in call.items() if (role := role_of(filler)) in ("ids", "source")}
    if subject.convention.as_dict:
        return _asked_masks(subject)
    return [
        (p.name, is_of_source(p.name, roles))
        for p in parameters_of(subject.model)
        if MASK.search(p.name)
        and not CACHE.search(p.name)
        and not isinstance(p.default, (int, float, str))  # a number of tokens, or a switch
        and not (ELSEWHERE.search(p.name) and not subject.convention.has_source)
        and "causal" not in call.get(p.name, "")
        and (PADDING.search(p.name) or p.name in MASK_NAMES or "keep" in call.get(p.name, ""))
    ]


def _asked_masks(subject: Subject) -> list[tuple[str, bool]]:
    """The same of a model that looks for them in a dict."""
    with subject.quiet():
        names = subject.convention.asked(subject.model, subject.inputs())
    roles = {"source": "source", "target": "ids"} if subject.convention.has_source else {"ids": "ids"}
    return [(name, is_of_source(name, roles)) for name in names if MASK.search(name) or "pad" in name]


def _padded(subject: Subject, source: bool) -> tuple[Inputs, Tensor, Tensor]:
    """A batch with padding where it would be seen, its keep mask, and other tokens to put there."""
    inputs, other = subject.inputs(ROWS, salt=5), subject.inputs(ROWS, salt=6)
    row, changed = (inputs.source, other.source) if source else (inputs.ids, other.ids)
    assert row is not None
    assert changed is not None
    keep = torch.ones_like(row, dtype=torch.bool)
    few, many = max(1, row.shape[1] // 4), max(1, row.shape[1] // 3)
    if source or not subject.looks_back_only:
        keep[0, -few:], keep[1, -many:] = False, False
    else:
        keep[0, :few], keep[1, :many] = False, False  # a causal model does not see what is on the right anyway
    return inputs, keep, changed


def _by_parameter(subject: Subject, names: Sequence[str], source: bool) -> list[Finding]:
    """What is wrong with a parameter, or with the first of some that are given the same mask."""
    batch = _padded(subject, source)
    moves: dict[str, float] = {}
    broken: list[str] = []
    name = names[0]
    wanted = next((told for told in map(_declared_polarity, names) if told is not None), None)
    said = keeps_what_is_true(subject.original, name) if wanted is None else None
    wanted = said if wanted is None else wanted
    if LENGTHS.search(name) and subject.looks_back_only and not source:
        return behind(subject, name)  # a length means padding behind, which nothing looks back from
    for form in forms_of(name):
        try:
            moves[form] = _moved_under(subject, names, form, source)
        except FloatingPointError:
            broken.append(form)
        except Exception:
            continue
        else:
            if moves[form] <= FAINT and wanted in (None, _keeps(form)):
                break  # no other form can hide it better
    meant = [form for form in (*moves, *broken) if wanted is None or _keeps(form) == wanted]
    if meant and all(form in broken for form in meant):
        witness = f"with {name} ({meant[0]}) and padding in front, logits of real tokens are not finite"
        where = _first_spoilt(subject, batch, names, meant[0], source)
        turned = any(value <= THRESHOLD for form, value in moves.items() if form not in meant)
        return [finding((("M12", 0.8), ("M14", 0.2)) if turned else (("M14", 0.8), ("M12", 0.2)), witness, where=where)]
    if not moves:
        return []  # no form fits: it is another kind of mask
    inert = [form for form, value in moves.items() if value <= THRESHOLD]
    right = [form for form in inert if wanted is None or _keeps(form) == wanted]
    if right:
        subject.paths.append(f"{' and '.join(names)} ({right[0]})")
        best = min(right, key=lambda form: moves[form])
        return _outweighed(subject, batch, names, best, source) or amounts(
            subject, batch, _masked(subject, names, best, source), name, source=source
        )
    if not inert and name in MASK_NAMES and (said is None or subject.looks_back_only):
        return []  # it need not be about padding
    form = min((form for form in moves if wanted is None or _keeps(form) == wanted), key=moves.__getitem__, default="")
    form = form or next(iter(moves))
    if inert:
        polarity = "1 for real tokens" if wanted else "True for padding"
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
        _masked(subject, names, form, source)(_both(*batch, source)[0])
    found = first_spoilt(calls)
    return attention_place(subject) if found == Where() else found


def _blame(
    subject: Subject, inputs: Inputs, keep: Tensor, changed: Tensor, names: Sequence[str], form: str, source: bool
) -> tuple[Where, Causes]:
    """The first module in which a real token reads padding, and why it does."""
    inputs, other = _both(inputs, keep, changed, source)
    run = _masked(subject, names, form, source)
    with subject.quiet():
        where, call = locate(subject.model, run, inputs, other, kept_reading(keep), lambda alive: bool(alive.any()))
        with recorded_ops() as ops:
            base = run(inputs)
        open_ = keep.clone()
        open_[0] = True  # without padding in row 0
        moved = run(replace(inputs, **{"source_keep" if source else "keep": open_}))[2] - base[2]
    if float(moved.abs().max()) > THRESHOLD * float(base.std()):
        return where, (("M15", 0.8), ("A10", 0.2))
    if any(_hides_queries(one, keep) for one in attentions(ops.calls)):
        return where, (("M13", 0.8), ("M11", 0.2))
    first = 0 if subject.convention.time_first else 1
    crossing = call is not None and any(subject.found.T in tensor.shape[first:] for tensor in call.outputs)
    if source and (call is None or crossing):
        return where, (("S01", 0.7), ("M11", 0.2), ("M13", 0.1))
    return where, (("M11", 0.7), ("M13", 0.2), ("S01", 0.1))


def _hides_queries(one: Attention, keep: Tensor) -> bool:
    """Whether in the first row padding may see nothing, and may itself be seen."""
    if one.scores is None or one.scores.shape[1:] != (keep.shape[1],) * 2:
        return False
    hidden = one.scores[0] < HIDDEN  # (T, T)
    return bool(hidden.any()) and torch.equal(hidden, (~keep[0])[:, None].expand_as(hidden))


def _outweighed(
    subject: Subject, batch: tuple[Inputs, Tensor, Tensor], names: Sequence[str], form: str, source: bool
) -> list[Finding]:
    """A mask that is a number: padding comes through it, a little now, and all of it once scores have grown."""
    name = names[0]
    faint = _moved_under(subject, names, form, source)
    if faint > SURE or (faint > FAINT and _is_there_in_double(subject, *batch, names, form, source)):
        where, _ = _blame(subject, *batch, names, form, source)
        witness = f"other tokens under {name} still move the logits of real tokens, by {faint:.1e} of their spread"
        return [finding((("M08", 0.8), ("M11", 0.2)), witness, value=faint, threshold=FAINT, where=where)]
    try:
        with scaled(subject.model):
            value = _moved(subject, *batch, names, form, source)
    except FloatingPointError:
        return []
    if value <= LENGTH_THRESHOLD:
        return []
    where = attention_place(subject)
    witness = f"with matrices {SCALE:g} times as large, other tokens under {name} move real logits by {value:.1e}"
    return [finding("M08", witness, value=value, threshold=LENGTH_THRESHOLD, where=where, status="warn")]


def _is_there_in_double(subject: Subject, *question: Any) -> bool:
    """Whether padding comes through where numbers differ by 1e-16 only: what shares a batch may round otherwise."""
    try:
        with subject.precise():
            return _moved(subject, *question) > FAINT
    except Exception:  # some operations know no float64: it is a tie-breaker, never a verdict by itself
        return False


def _keeps(form: str) -> bool:
    """Whether True or 1 means a real token."""
    return "keep" in form or form == "lengths"


def _declared_polarity(name: str) -> bool | None:
    """What the field's conventions say: attention_mask keeps what is 1, key_padding_mask drops what is True."""
    if "attention_mask" in name:
        return True
    return False if "key_padding_mask" in name else None


def _both(inputs: Inputs, keep: Tensor, changed: Tensor, source: bool) -> tuple[Inputs, Inputs]:
    """The padded batch, and the same with other tokens under the padding."""
    mixed = torch.where(keep, inputs.source if source and inputs.source is not None else inputs.ids, changed)
    if source:
        return replace(inputs, source_keep=keep), replace(inputs, source=mixed, source_keep=keep)
    return replace(inputs, keep=keep), replace(inputs, ids=mixed, keep=keep)


def _masked(subject: Subject, names: Sequence[str], form: str, source: bool) -> Run:
    """The model under a padding mask in one form, given as each of these parameters."""

    def run(given: Inputs) -> Tensor:
        value = keep_filler(form, source)(given, subject.convention.time_first)
        return subject.convention.logits(subject.model, given, **dict.fromkeys(names, value))

    return run


def _moved(
    subject: Subject, inputs: Inputs, keep: Tensor, changed: Tensor, names: Sequence[str], form: str, source: bool
) -> float:
    """How far the logits of real tokens move, of their spread."""
    run = _masked(subject, names, form, source)
    with subject.quiet():
        before, after = (run(given) for given in _both(inputs, keep, changed, source))
    real = torch.ones_like(inputs.ids, dtype=torch.bool) if source else keep
    if not (before[real].isfinite().all() and after[real].isfinite().all()):
        raise FloatingPointError
    return float((after - before)[real].abs().max()) / (float(before[real].std()) or 1.0)


def _moved_under(subject: Subject, names: Sequence[str], form: str, source: bool) -> float:
    """The same of the usual batch, which several checks ask for, and which is run once."""
    key = (tuple(names), form, source)
    if key not in subject.moved_under_masks:
        subject.moved_under_masks[key] = _moved(subject, *_padded(subject, source), names, form, source)
    return subject.moved_under_masks[key]
