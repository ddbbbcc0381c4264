"""Padding: neither the tokens under it nor their number may matter to real tokens."""

import math

import torch
from torch import Tensor

from clearhead.doctor.calling.docs import keeps_by_name, keeps_what_is_true
from clearhead.doctor.calling.names import LABELS, LENGTHS, MASK, PADDING, START, parameters_of
from clearhead.doctor.calling.outputs import follow
from clearhead.doctor.checks.base import APART, Causes, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.checks.padding.amounts import (
    POOLED,
    TELLS,
    amounts,
    by_token,
    hides_padding,
    never_told,
    own_mixer,
    pooled_at,
    told_side,
    where_not_given,
)
from clearhead.doctor.checks.padding.masks import (
    LENGTH_THRESHOLD,
    MASK_NAMES,
    ROWS,
    THRESHOLD,
    PaddingMask,
    hiding_mask,
    mask_parameters,
    masks_taken,
    neutral_first,
    padding_tokens,
    unread_lengths,
)
from clearhead.doctor.checks.padding.padded_rows import other_rows
from clearhead.doctor.probes.attention import HIDDEN, AttentionCall, attentions
from clearhead.doctor.probes.localization import kept_reading, locate
from clearhead.doctor.probes.tensors import change_of
from clearhead.doctor.probes.tracing import quiet
from clearhead.doctor.report.findings import Finding, Status, Where
from clearhead.doctor.state_guard import SCALE, scaled

PADDING_FAULTS = ("M07", "M08", "M11", "M12", "M13", "M14", "M15", "M20", "M22", "A10", "P02", "S01")
SURE = 1e-5  # of the logits' spread: more than any rounding
FAINT = 1e-6  # of the logits' spread: what a mask of -inf hides moves less
PLAIN = "attention_mask"


@model_check("M11", "paddings", order=160, covers=PADDING_FAULTS, needs=APART)
def paddings(subject: Subject) -> list[Finding]:
    """Tokens under a padding mask do not move the logits of real tokens."""
    masks, tokens = mask_parameters(subject), padding_tokens(subject)
    if not masks and not tokens:
        return never_told(subject)
    if not masks:
        faults = [by_token(padding) for padding in tokens]
        if all(new is None for new in faults):
            raise Skipped("it could not be run with more padding beside a row")
        return [fault for new in faults for fault in new or ()]
    findings, unknown = _by_parameters(subject, masks)
    findings = findings or where_not_given(subject, masks)
    if not findings and len(unknown) == len(masks):
        raise Skipped(f"'{unknown[0]}' takes a mask in none of the known forms")
    return findings


def _by_parameters(subject: Subject, masks: list[tuple[str, bool]]) -> tuple[list[Finding], list[str]]:
    """The findings of all parameters, and those that take a mask in no known form."""
    findings: list[Finding] = []
    unknown: list[str] = []
    settled: set[tuple[str, bool]] = set()  # those that hide padding where others of their side do as well
    for name, source in sorted(masks, key=lambda mask: mask[0] != PLAIN):
        if (name, source) in settled:
            continue
        faults = _by_parameter(subject, (name,), source)
        if faults is None:
            unknown.append(name)
            continue
        beside = [other for other, of_source in masks if of_source == source and PADDING.search(other)]
        names = tuple(dict.fromkeys((name, *beside)))
        if faults and len(names) > 1 and hiding_mask(subject, names, source):
            faults = _by_parameter(subject, names, source) or []  # one for self-attention, one for cross-attention
            settled |= {(other, source) for other in beside}
        if name == PLAIN and not faults:  # another attention_mask beside one that hides padding means something else
            settled |= {(other, source) for other, _ in masks if other.endswith(f"_{PLAIN}")}
        findings += faults
    return findings, unknown


def _by_parameter(subject: Subject, names: tuple[str, ...], source: bool) -> list[Finding] | None:
    """What is wrong with a parameter, or with several that are given the same mask; None if no form fits."""
    name, lengths = names[0], PaddingMask(subject, source, names, "lengths")
    if LENGTHS.search(name) and lengths.is_future:
        return amounts(lengths)
    polarities = (*map(keeps_by_name, names), keeps_what_is_true(subject.original, name))
    expected = next((keeps for keeps in polarities if keeps is not None), None)
    masks: list[PaddingMask] = []
    for mask in masks_taken(subject, names, source):
        masks.append(mask)
        if mask.moved <= FAINT and expected in (None, mask.keeps_what_is_one) and mask.is_neutral:
            break  # no other form can hide it better
    meant = [mask for mask in masks if expected in (None, mask.keeps_what_is_one)]
    inert = [mask for mask in masks if mask.moved <= THRESHOLD]
    if meant and all(math.isnan(mask.moved) for mask in meant):
        whole = subject.inputs(ROWS, salt=5)
        if expected is None and not any(mask.run(whole).isfinite().all() for mask in meant):
            return None  # whatever hides something else than padding
        witness = f"with {name} ({meant[0].form}) and padding in front, logits of real tokens are not finite"
        causes: Causes = (("M12", 0.8), ("M14", 0.2)) if inert else (("M14", 0.8), ("M12", 0.2))
        where, is_target = meant[0].first_nan(meant[0].under_padding()[0]), subject.convention.has_source and not source
        # a target is padded at its end
        side = "front" if meant[0].is_future else "behind"
        faults = [] if is_target else [finding(causes, witness, where=where, second=told_side(meant[0], side))]
        return faults + _behind_the_first(meant)
    unclear = [mask for mask in masks if math.isnan(mask.moved)]
    masks = [mask for mask in masks if mask not in unclear]
    if not masks:
        return None  # it is another kind of mask
    right = [mask for mask in inert if mask in meant]
    if right:
        subject.journal.paths.append(str(right[0]))
        best = neutral_first(sorted(right, key=lambda mask: mask.moved > SURE)) or right[0]
        is_one = len(subject.convention.held(subject.inputs())) == 1
        if not best.is_neutral and any(mask.is_neutral for mask in unclear):
            return []  # the form that is meant leaves some rows nothing to see
        return _outweighed(best) or _whole(best) or (is_one and not best.is_future and amounts(best)) or []
    may_be_other = name in MASK_NAMES and (expected is None or subject.looks_back_only)
    is_of_rows = subject.gives_rows and subject.convention.reads_words("source" if source else "ids")
    if not inert and may_be_other and not is_of_rows:
        return _ignored(subject, masks) or _hidden_in_part(subject, masks) or None  # it need not be about padding
    if not inert and masks[0].form == "lengths" and (unused := _ignored(subject, masks)):
        return unused
    mask = min((mask for mask in masks if mask in meant), key=lambda mask: mask.moved, default=masks[0])
    if inert:
        polarity = "1 for real tokens" if expected else "True for padding"
        witness = f"with {polarity} in {name}, changing tokens under the padding moves real logits by {mask.moved:.1e}"
        is_said = keeps_what_is_true(subject.original, name) is not None or not all(PLAIN in name for name in names)
        status: Status = "fail" if is_said else "warn"  # many a mask of torch's polarity is called attention_mask
        witness += "" if is_said else f"; only a warning, as in much code an {PLAIN} is True for padding, like torch's"
        causes, where = (("M12", 0.9), ("M11", 0.1)), subject.attention_place
        return [finding(causes, witness, value=mask.moved, threshold=THRESHOLD, where=where, status=status)]
    mixer = own_mixer(subject)
    witness = f"changing the tokens under {name} moves the logits of real tokens by {mask.moved:.1e} of their spread"
    witness += f"; {mixer} mixes tokens without a mask" if mixer else ""
    where, causes = _blame(mask)
    is_sure = not (mixer or _is_told_by_token(mask) or _hides_before(mask) or _may_be_no_mask(mask) or may_be_other)
    status = "fail" if is_sure else "warn"
    return [finding(causes, witness, value=mask.moved, threshold=THRESHOLD, where=where, status=status, second=TELLS)]


def _is_told_by_token(mask: PaddingMask) -> bool:
    """Whether some attention hides a token of padding, whose amount changes nothing: no mask need be read then."""
    for token in padding_tokens(mask.subject):
        with attempt():
            if token.source == mask.source and hides_padding(token) and amounts(token) == []:
                return True
    return False


def _may_be_no_mask(mask: PaddingMask) -> bool:
    """Whether a model of numbers hides nothing in any attention: it may be given the places that it is to predict."""
    batch = mask.under_padding()[0].rows(torch.zeros(1, dtype=torch.long))
    return mask.subject.convention.reads_numbers and all(
        attention.allowed.all() for attention in attentions(mask.operations(batch))
    )


def _hides_before(mask: PaddingMask) -> bool:
    """Whether padding is hidden that lies before a place which the caller tells, as the end of a prefix; it was 0."""
    subject = mask.subject
    for name in (name for name, filler in subject.convention.call if filler == "0" and not START.search(name)):
        with attempt(), quiet():
            end = {name: subject.calling.T // 2}
            first, second = (
                follow(
                    subject.convention.raw(subject.model, rows, **mask.arguments(rows), **end),
                    subject.convention.output,
                )
                for rows in mask.under_padding()
            )
            if change_of(first, second) <= THRESHOLD:
                return True
    return False


def _behind_the_first(masks: list[PaddingMask]) -> list[Finding]:
    """What a mask lets through where the first token is real: a row of NaN would hide it."""
    moved = [mask.move(after_first=True) for mask in masks]
    if not min(moved) > THRESHOLD:
        return []
    witness = f"with token 0 real, changing tokens under {masks[0].names[0]} moves real logits by {min(moved):.1e}"
    where, causes = masks[0].subject.attention_place, (("M11", 0.6), ("M15", 0.4))
    return [finding(causes, witness, value=min(moved), threshold=THRESHOLD, where=where)]


def _whole(mask: PaddingMask) -> list[Finding]:
    """A mask that hides nothing is as good as none."""
    if mask.is_neutral:
        return []
    subject, inputs = mask.subject, mask.subject.inputs(ROWS, salt=5)
    value = change_of(subject.run(inputs), mask.run(inputs))
    witness = f"{mask} that hides nothing moves logits by {value:.1e} of their spread, compared with no mask"
    causes: Causes = (("M12", 0.6), ("M11", 0.4)) if math.isfinite(value) else (("M14", 0.6), ("M12", 0.4))
    return [finding(causes, witness, value=value, threshold=LENGTH_THRESHOLD, where=subject.attention_place)]


def _ignored(subject: Subject, masks: list[PaddingMask]) -> list[Finding]:
    """Whatever is given as a mask, no logit moves to the last bit, and padding behind a row is seen."""
    batch, _ = masks[0].under_padding()
    whole = batch.unpadded
    if masks[0].is_future or any(LABELS.search(p.name) for p in parameters_of(subject.model)):
        return []  # it may be of the loss
    if not all(torch.equal(mask.run(rows), masks[0].run(whole)) for mask in masks for rows in (batch, whole)):
        return []
    reads_words = subject.convention.reads_words("source" if masks[0].source else "ids")
    is_of_rows = masks[0].form == "lengths" or (reads_words and not own_mixer(subject))
    if not is_of_rows or not subject.attentions:
        return []
    by_lengths = masks[0].form == "lengths"
    witness = unread_lengths(masks[0]) if by_lengths else f"whatever is given as {masks[0].names[0]}, no logit moves"
    witness += "" if by_lengths else ": the argument is not used"
    causes: Causes = (("S01", 0.6), ("M11", 0.4)) if masks[0].source else (("M11", 1.0),)
    return [finding(causes, witness, value=0.0, where=subject.attention_place)]


def _hidden_in_part(subject: Subject, masks: list[PaddingMask]) -> list[Finding]:
    """What is hidden from all queries of one attention, which shows what the mask is, is read all the same."""
    named = {*masks[0].names, *dict(subject.convention.call)}
    if masks[0].is_future or any(MASK.search(p.name) and p.name not in named for p in parameters_of(subject.model)):
        return []  # another mask may be that of the rest
    for mask in masks:
        batch, value = mask.under_padding()[0].rows(torch.zeros(1, dtype=torch.long)), mask.moved
        keep, maps = batch.kept(mask.source)[0], attentions(mask.operations(batch))
        hiding = [subject.place_of(a.call).module for a in maps if torch.equal(a.allowed.any(0), keep)]
        if not hiding:
            continue
        where, causes = _blame(mask)
        witness = f"{hiding[0] or 'an attention'} hides the tokens under {mask.names[0]} ({mask.form}), and to change "
        witness += f"them moves the logits of real tokens by {value:.1e} of their spread"
        against = "the attention that hides them"
        return [finding(causes, witness, value=value, threshold=THRESHOLD, where=where, against=against, second=TELLS)]
    return []


def _blame(mask: PaddingMask) -> tuple[Where, Causes]:
    """The first module in which a real token reads padding, and why it does."""
    subject, source = mask.subject, mask.source
    inputs, other = mask.under_padding()
    keep = inputs.kept(source)
    where, call, *_ = locate(
        subject.model, mask.run, inputs, other, kept_reading(keep), lambda alive: bool(alive.any())
    )
    if other_rows(mask):
        return where, (("M15", 0.8), ("A10", 0.2))
    if where == pooled_at(subject, source=source):
        return where, POOLED
    maps = list(attentions(mask.operations(inputs)))
    turned = next((attention for attention in maps if _shows_padding_alone(attention, keep)), None)
    if turned is not None:
        return subject.place_of(turned.call), (("M12", 0.8), ("M11", 0.2))
    if any(_hides_queries(attention, keep) for attention in maps):
        return where, (("M13", 0.8), ("M11", 0.2))
    first = 0 if subject.convention.time_first else 1
    crossing = call is not None and any(subject.calling.T in tensor.shape[first:] for tensor in call.outputs)
    if source and (call is None or crossing):
        return where, (("S01", 0.7), ("M11", 0.2), ("M13", 0.1))
    return where, (("M11", 0.7), ("M13", 0.2), ("S01", 0.1))


def _shows_padding_alone(attention: AttentionCall, keep: Tensor) -> bool:
    """Whether padding may be seen, and no token that is real in every row."""
    if attention.allowed.shape[1] != keep.shape[1]:
        return False
    is_real = keep.all(0)
    return bool(attention.allowed[:, ~is_real].any()) and not attention.allowed[:, is_real].any()


def _hides_queries(attention: AttentionCall, keep: Tensor) -> bool:
    """Whether in the first row padding sees nothing, but may be seen."""
    if attention.scores is None or attention.scores.shape[1:] != (keep.shape[1],) * 2:
        return False
    hidden = attention.scores[0] < HIDDEN  # (T, T)
    return bool(hidden.any()) and torch.equal(hidden, (~keep[0])[:, None].expand_as(hidden))


def _outweighed(mask: PaddingMask) -> list[Finding]:
    """A mask that is a finite number lets padding through: a little now, and all of it once scores have grown."""
    subject, name = mask.subject, mask.names[0]
    if mask.moved > SURE:
        witness = f"changing the tokens under {name} still moves real logits by {mask.moved:.1e} of their spread"
        causes = (("M08", 0.8), ("M11", 0.2))
        return [finding(causes, witness, value=mask.moved, threshold=SURE, where=_blame(mask)[0])]
    if _hides_for_good(mask):
        return []
    with scaled(subject.model):
        value = mask.move()
    if not value > LENGTH_THRESHOLD:
        return []
    witness = f"with matrices {SCALE:g} times as large, changing tokens under {name} moves real logits by {value:.1e}"
    where = subject.attention_place
    return [finding("M08", witness, value=value, threshold=LENGTH_THRESHOLD, where=where, status="warn")]


def _hides_for_good(mask: PaddingMask) -> bool:
    """Whether padding has scores that no model outweighs, in every attention whose scores over it are known."""
    batch, _ = mask.under_padding()
    hidden = ~batch.kept(mask.source).any(0)  # (n,), padding in every row
    maps = (attention.scores for attention in attentions(mask.operations(batch)))
    over = [scores[..., hidden] for scores in maps if scores is not None and scores.shape[-1] == len(hidden)]
    return bool(hidden.any() and over) and all(bool((scores < HIDDEN).all()) for scores in over)
