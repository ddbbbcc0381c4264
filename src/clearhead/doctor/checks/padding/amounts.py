"""How much padding stands beside a row must not matter, whether a mask or its token tells of it."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import parameters_of
from clearhead.doctor.checks.base import Causes, Finding, Skipped, Status, Subject, Where, attempt, finding
from clearhead.doctor.checks.padding.masks import (
    LENGTH_THRESHOLD,
    ROWS,
    Padding,
    PaddingToken,
    knows_padding,
    padding_masks,
    padding_tokens,
)
from clearhead.doctor.probes.attention import attentions
from clearhead.doctor.probes.masking import masked_by
from clearhead.doctor.probes.mentions import filled_side
from clearhead.doctor.probes.tensors import change_of
from clearhead.doctor.spec import Assumption

MORE = 3  # tokens of padding
POSSIBLE = 3  # tokens that padding may be, where nothing tells which: 0, 1 and 2
TELLS = "a mask, which says where padding is"  # a token may be meant for another side of a row
POOLED: Causes = (("M22", 0.8), ("M11", 0.2))
POOLS = {"mean", "sum", "max", "amax"}
OWN_MIXERS = {"conv1d", "conv2d", "fft", "gru", "lstm", "rnn_tanh"}  # no mask reaches them


def beside_padding(padding: Padding) -> tuple[Inputs, Inputs]:
    """Rows alone, and with three tokens of padding behind them.

    The last row has no padding, so that rows have masks of their own: it is not to be compared.
    """
    subject, source = padding.subject, padding.source
    inputs, real = subject.inputs(ROWS, salt=5), slice(-MORE)
    alone = inputs.with_tokens(source, inputs.tokens(source)[:, real])
    if source and subject.calling.S == subject.calling.T:  # the model needs source and target of one length
        alone = alone.with_tokens(False, inputs.ids[:, real])
    return replace(alone, labels=alone.ids), inputs.padded(source, (MORE,) * (ROWS - 1))


def amounts(padding: Padding) -> list[Finding] | None:
    """Three tokens of padding behind a row move no logit of its real tokens. They do in a mean over all positions.

    None, and a note, if the model takes no shorter rows, or no such mask.
    """
    with attempt() as attempted:
        return _moved_by_more(padding)
    padding.subject.journal.untried(f"more padding, given by {padding}", attempted)
    return None


def _moved_by_more(padding: Padding) -> list[Finding]:
    subject, source = padding.subject, padding.source
    alone, padded = beside_padding(padding)
    before = subject.run(alone)[:-1]
    after = padding.run(padded)[:-1, : before.shape[1]]
    row = f"{'the source' if source else 'a row'}, given by {padding},"
    if not (before.isfinite().all() and after.isfinite().all()):
        causes: Causes = (("M12", 0.7), ("M14", 0.3)) if padding.is_future else (("M14", 0.6), ("M12", 0.4))
        witness, where = f"with padding after {row} logits are not finite", padding.first_nan(padded)
        return [finding(causes, witness, where=where, second=told_side(padding, "behind"))]
    value = change_of(before, after)
    if value <= LENGTH_THRESHOLD:
        return []
    moved = "what it gives for the row" if subject.gives_rows else "the logits of real tokens"
    witness = f"three tokens of padding after {row} move {moved} by {value:.1e}"
    status: Status = "warn" if own_mixer(subject) or not _attends_to_all(subject) else "fail"
    where, causes = _blame(padding, padded.rows(torch.arange(ROWS - 1)))
    if padding.is_future:  # only the real tokens may be hidden
        is_deaf = _is_deaf(padding, padded)
        where, causes, status = subject.attention_place, (("M12", 1.0),), "fail" if is_deaf else "warn"
        witness += "; token 0 no longer moves any other's" if is_deaf else ""
    file, side = filled_side(subject.original) if isinstance(padding, PaddingToken) else ("", "")
    if where.op in POOLS:
        second = f"the {where.op} over all of a row"  # wherever the padding is
    elif isinstance(padding, PaddingToken):  # which may be meant for the front of a row
        second = f"{file}, which fills rows behind" if side == "behind" else ""
    else:
        second = TELLS
    return [
        finding(causes, witness, value=value, threshold=LENGTH_THRESHOLD, where=where, status=status, second=second)
    ]


def _attends_to_all(subject: Subject) -> bool:
    """Whether every attention is over all tokens, or over numbers: none over chunks, landmarks or pooled tokens."""
    if not (subject.convention.reads_words("ids") and subject.convention.reads_words("source")):
        return True
    maps = attentions(subject.operations(subject.inputs()))
    sizes = {size for attention in maps for size in attention.allowed.shape}
    return bool(sizes) and sizes <= {subject.calling.T, subject.calling.S}


def _is_deaf(padding: Padding, padded: Inputs) -> bool:
    """Whether the first token moves no logit of the other real ones."""
    ids = padded.ids.clone()
    ids[:, 0] = padding.subject.inputs(ROWS, salt=6).ids[:, 0]
    moved = padding.run(padded.with_tokens(False, ids)) - padding.run(padded)
    return not moved[:-1, 1:-MORE].any()


def _blame(padding: Padding, padded: Inputs) -> tuple[Where, Causes]:
    """The first attention in which real queries may look at the padding behind a row, and why they may."""
    subject, source = padding.subject, padding.source
    n = padded.tokens(source).shape[1]
    for attention in attentions(padding.operations(padded)):
        crossing = attention.allowed.shape[0] != n
        queries = attention.allowed if crossing else attention.allowed[:-MORE]
        if attention.allowed.shape[1] != n or not bool(queries[:, -MORE:].any()):
            continue
        where = subject.place_of(attention.call)
        if not queries[:, :-MORE].any():
            return where, (("M12", 0.8), ("M11", 0.2))
        if source and crossing:
            return where, (("S01", 0.7), ("M11", 0.2), ("M12", 0.1))
        return where, (("M11", 0.7), ("M12", 0.15), *((("S01", 0.15),) if source else (("M13", 0.15),)))
    pooling = pooled_at(subject, source=source)
    if pooling is not None:
        return pooling, POOLED
    of_source: Causes = (("S01", 0.5), ("M11", 0.3), ("M12", 0.2))
    return subject.attention_place, of_source if source else (("M11", 0.6), ("M12", 0.2), ("M13", 0.2))


def pooled_at(subject: Subject, *, source: bool) -> Where | None:
    """Where a model with one output per row pools its tokens: the last operation whose result has no axis for them."""
    if not subject.gives_rows:
        return None
    n = subject.calling.S if source else subject.calling.T
    pooling = [
        call
        for call in subject.operations(subject.inputs(ROWS))
        if call.module is not None
        and any(n in tensor.shape[1:] and tensor.dim() == 3 for tensor in call.inputs)
        and call.outputs
        and not any(n in tensor.shape[1:] for tensor in call.outputs)
    ]
    return subject.place_of(pooling[-1]) if pooling else None


def own_mixer(subject: Subject) -> str | None:
    """An operation that mixes tokens and takes no mask."""
    mixers = subject.operations(subject.inputs(), named=lambda name: name in OWN_MIXERS)
    return mixers[0].name if mixers else None


def by_token(padding: PaddingToken) -> list[Finding] | None:
    """Three of them must not matter where they would be seen: behind a row, or in front of it, where code puts them.

    None if the model takes no shorter rows.
    """
    subject = padding.subject
    origin, _ = subject.padding(source=padding.source)
    if origin != "you":
        subject.journal.assumptions.append(Assumption("padding", str(padding), (f"{origin} says so",)))
    file, side = ("", "") if subject.convention.has_source else filled_side(subject.original)
    is_in_front = side == "front"
    subject.journal.paths.append(f"padded with {padding}{f' in front, as {file} has it' if is_in_front else ''}")
    if not is_in_front and not padding.is_future:
        return amounts(padding)
    if subject.convention.has_source:
        return []  # a target is padded at its end
    return _in_front(padding) or (_attended_in_front(padding, file) if is_in_front else [])


def never_told(subject: Subject) -> list[Finding]:
    """Rows that code beside fills up behind, for a model that cannot know: padding is read, be it token 0, 1 or 2."""
    file, side = filled_side(subject.original)
    source = subject.convention.has_source
    V = subject.calling.source_vocab_size if source else subject.calling.vocab_size
    paddings = [PaddingToken(subject, source, pad) for pad in range(min(POSSIBLE, V))]
    if side != "behind" or paddings[0].is_future or not subject.convention.reads_words("source" if source else "ids"):
        raise Skipped("it takes no padding mask, and no padding token is known")
    subject.journal.paths.append(f"padded behind, as {file} has it, with token 0, 1 or 2")
    faults = list(map(amounts, paddings))
    if None in faults:
        raise Skipped("it could not be run with more padding behind a row")
    against = "that it has no mask and knows no padding token"
    read = faults[0] if all(faults) else None  # else it may hide one of them in a way of its own
    return [replace(fault, evidence=replace(fault.evidence, against=against)) for fault in read or ()]


def where_not_given(subject: Subject, masks: Sequence[tuple[str, bool]]) -> list[Finding]:
    """Masks that the model makes from the tokens if none is given: what one attention hides, no other may see.

    On a side, source or target, where a mask hides all padding if it is given, findings are only warnings.
    """
    findings: list[Finding] = []
    optional = {p.name for p in parameters_of(subject.model) if p.default is None}
    optional -= {name for name, _ in subject.convention.call}
    safe = {mask.source for mask in padding_masks(subject)}
    for padding in padding_tokens(subject):
        names = {name for name, of_source in masks if of_source == padding.source}
        if names and names <= optional and not padding.is_future and hides_padding(padding):
            faults = by_token(padding) or []
            findings += [replace(fault, status="warn") for fault in faults] if padding.source in safe else faults
    return findings


def hides_padding(padding: PaddingToken) -> bool:
    """Whether any attention hides the padding among its keys."""
    _, padded = beside_padding(padding)
    n = padded.tokens(padding.source).shape[1]
    operations = padding.operations(padded.rows(torch.arange(ROWS - 1)))
    keys = (attention.allowed.any(0) for attention in attentions(operations) if attention.allowed.shape[1] == n)
    return any(bool(shown[:-MORE].any()) and not bool(shown[-MORE:].any()) for shown in keys)


def _in_front(padding: PaddingToken) -> list[Finding]:
    """Padding in front of a row leaves its first queries nothing to look at, which must not make NaN of later ones."""
    batch, _ = padding.under_padding()
    if padding.run(batch)[batch.kept()].isfinite().all():
        return []
    witness = f"with padding (token {padding.pad}) in front, the logits of the real tokens are NaN"
    where = padding.first_nan(batch)
    return [finding((("M14", 0.9), ("M12", 0.1)), witness, where=where, second=told_side(padding, "front"))]


def told_side(padding: Padding, side: str) -> str:
    """The code beside a model that fills up rows on a side, "behind" or "front"; empty if none does."""
    file, filled = filled_side(padding.subject.original)
    return f"{file}, which fills rows {'in front' if side == 'front' else side}" if filled == side else ""


def _attended_in_front(padding: PaddingToken, file: str) -> list[Finding]:
    """Real tokens do not attend to the padding in front of them: to hide it from them moves nothing."""
    subject = padding.subject
    batch = subject.inputs(ROWS, salt=5).padded(False, (MORE,) * ROWS, front=True)
    T = subject.calling.T

    def of_real(T_q: int, T_k: int) -> Tensor | None:
        if (T_q, T_k) != (T, T):
            return None
        return (torch.arange(T)[:, None] >= MORE) & (torch.arange(T) < MORE)

    before = padding.run(batch)
    with masked_by(of_real):
        value = change_of(before, padding.run(batch))
    if not LENGTH_THRESHOLD < value < math.inf:
        return []
    witness = (
        f"with {padding} in front of a row, as {file} has it, real tokens attend to it: "
        f"to hide it from them moves logits by {value:.1e} of their spread"
    )
    is_known = knows_padding(subject) or subject.padding(source=False)[0].endswith("padding_idx")
    status: Status = "fail" if is_known else "warn"  # else its own code need not want it hidden
    where = subject.attention_place
    return [finding("M11", witness, value=value, threshold=LENGTH_THRESHOLD, where=where, status=status)]
