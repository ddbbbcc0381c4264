"""What the training's own loss asks for: which targets, of which tokens, by which formula; and not for padding."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.doctor.calling.outputs import arrange, tensors
from clearhead.doctor.calling.settings import setting
from clearhead.doctor.checks.base import Finding, Skipped, Where, attempt, finding
from clearhead.doctor.checks.loss.judge import arithmetic, mean_of_means, the_same_token, too_far, uneven_smoothing
from clearhead.doctor.probes.loss import FEW, STRAIGHT, Xray, is_probability
from clearhead.doctor.probes.tensors import first_true
from clearhead.doctor.training.checks import first_of, training_check
from clearhead.doctor.training.logits import LogitsXray
from clearhead.doctor.training.recording import Recording
from clearhead.doctor.training.trials import CLOSE, difference, other_tokens, run, trying

NEXT = 0.9  # share of targets that are the next token, from which the loss asks for the next token
GIVEN_AWAY = 0.5  # share of targets that are in the input at the same position
COARSE = 0.05  # residual of a cross-entropy with logits of eight bits
TAIL = 3  # equal targets at the end of a row that look like padding


@training_check(
    "D02", "asking", order=110, covers=("D01", "D04", "D05", "D12", "L02", "L03", "L04", "L05", "L07", "M01")
)
def asking(recording: Recording) -> list[Finding]:
    """The loss is a cross-entropy that asks for the next token or for hidden ones, and not for padding."""
    xrays = [xray for xray in recording.xrays if len(xray.logits)]
    if not xrays:
        raise Skipped("no logits over tokens were found between the model and its loss")
    first = xrays[0]
    findings = _arithmetic(first) if first.is_precise else []
    findings = findings or first_of(_offsets(recording, xrays), _padding(recording, xrays))
    if not findings and first.is_precise and first.xray.residual <= STRAIGHT:
        findings = [*_weights(first.xray)]
    where = next(backward.where for backward in recording.backwards if first in backward.xrays)
    return [fault if fault.where != Where() else replace(fault, where=where) for fault in findings]


def _arithmetic(xray: LogitsXray) -> list[Finding]:
    """A loss of another form may be meant, unless that form is a known mistake."""
    logits = xray.logits.float()
    if is_probability(logits):
        witness = "the model returns probabilities, which sum to 1, and the loss takes the softmax of them"
        return [finding("L03", witness, value=float(logits.max()), threshold=1.0)]
    return arithmetic(xray.xray, logits)


def _offsets(recording: Recording, xrays: list[LogitsXray]) -> Iterator[Finding]:
    """Where the targets are among the tokens that the model reads."""
    first = xrays[0]
    known = first.targets[first.targets >= 0]
    if len(known) < FEW or len(torch.unique(known)) < FEW - 1 or not first.shares:
        return
    if min(xray.shares.get(1, 0.0) for xray in xrays) >= NEXT:
        change = _change_ahead(recording)
        if change:  # a model whose target is the next token, and that reads it
            witness = (
                f"the targets are the next tokens, and changing the last token moves earlier scored logits by "
                f"{change:.2g} of the largest"
            )
            yield finding("M01", witness, value=change, threshold=CLOSE)
        return
    offsets = {xray.offset for xray in xrays}
    offset = offsets.pop() if len(offsets) == 1 else None
    if offset == 0:
        causal = _change_ahead(recording) == 0
        yield the_same_token(", which the model reads there", status="fail" if causal else "warn")
    elif offset is not None and offset != 1:
        yield too_far(offset)
    elif first.shares.get(0, 0.0) >= GIVEN_AWAY:
        share = first.shares[0]
        witness = f"{share:.0%} of the targets are in the input, at the position where they are the target"
        yield finding("D01", witness, value=share, threshold=GIVEN_AWAY, status="warn")
    elif first.xray.residual <= (STRAIGHT if first.is_precise else COARSE):  # otherwise there is no single target
        yield from _of_others(recording, first)


def _of_others(recording: Recording, xray: LogitsXray) -> Iterator[Finding]:
    """Targets that are not from their own row, but from another one, or from none."""
    targets, ids = xray.targets[:, :-1], xray.ids[:, 1:]
    fits = ((targets[:, None] == ids[None]) | (targets < 0)[:, None]).all(-1)  # (row of targets, row of tokens)
    scored = (targets >= 0).any(-1)
    if len(ids) > 1 and bool(scored.all()) and bool(fits.any(1).all()) and not bool(fits.diagonal().all()):
        row = int((~fits.diagonal()).nonzero()[0])
        other = int(fits[row].nonzero()[0])
        witness = f"the targets of row {row} are the next tokens of row {other}; each row has those of one row"
        yield finding("D12", witness, value=other, threshold=row)
        return
    same_vocabulary = xray.logits.shape[-1] == xray.embedded.vocab_size
    unlike = same_vocabulary and max(xray.shares.values()) < GIVEN_AWAY and xray.count >= 2 * FEW
    if unlike and _change_ahead(recording) == 0:
        share = xray.shares.get(1, 0.0)
        witness = (
            f"the model reads from left to right, and {share:.0%} of its targets are the next token; at no other "
            "distance are there more than half"
        )
        yield finding("D12", witness, value=share, threshold=NEXT, status="warn")


def _change_ahead(recording: Recording) -> float | None:
    """How far another last token moves the scored logits before it, in evaluation; None if that cannot be tried."""
    xray = next((xray for xray in reversed(recording.xrays) if xray.forward.args or xray.forward.kwargs), None)
    if xray is None:
        return None
    ids = xray.embedded.ids
    turned = ids.shape != xray.ids.shape and ids.t().shape == xray.ids.shape
    rows = ids.t() if turned else ids
    changed = rows.clone()
    changed[:, -1] = (rows[:, -1] + 1) % xray.embedded.vocab_size
    scored = (xray.targets[:, :-1] >= 0)[..., None]
    with attempt() as attempted, trying(recording, xray.forward.module):
        before, again = (_logits(xray, rows.shape) for _ in range(2))
        with other_tokens(xray.embedded, changed.t() if turned else changed):
            after = _logits(xray, rows.shape)
    if attempted.failed:  # its batch may be gone, or be part of one step only; the report's paths say so
        recording.event_log.untried.append(f"another last token could not be tried ({attempted.kind})")
        return None
    if before is None or after is None or again is None or not difference([before], [after]):
        return None
    early = [logits[: len(scored), :-1].masked_fill(~scored, 0) for logits in (before, again, after)]
    floor, change = difference(early[:1], early[1:2]), difference(early[:1], early[2:])
    return change if change > max(CLOSE, 20 * floor) else 0.0


def _logits(xray: LogitsXray, shape: torch.Size) -> Tensor | None:
    paths = [output.path for output in xray.forward.outputs if output.is_used]
    outputs = run(xray.forward, training=False)
    arranged = arrange(outputs[paths.index(xray.path)].float(), *shape)
    return arranged.cpu() if arranged is not None else None


def _padding(recording: Recording, xrays: list[LogitsXray]) -> Iterator[Finding]:
    """Positions that read padding and whose target is padding; and ends of texts that are no target."""
    declared, end = (_of_config(recording, name) for name in ("pad_token_id", "eos_token_id"))
    for xray in xrays:
        known = next((id for id in (xray.embedded.padding_id, declared, _masked(xray)) if id is not None), None)
        pad = _of_runs(xray) if known is None else known
        scored = (xray.ids == pad) & (xray.targets == pad) if pad is not None else torch.zeros_like(xray.ids).bool()
        if scored.any():
            number, (row, position) = int(scored.sum()), first_true(scored)
            doubt = "" if known is not None else ", which ends rows in runs of different lengths"
            witness = (
                f"position {position} of row {row} reads padding (token {pad}{doubt}) and its target is padding, as in "
                f"{number} of the {xray.count} scored positions"
            )
            yield finding("D05", witness, value=number, threshold=0, status="fail" if known is not None else "warn")
    if declared is None or declared != end or not any(bool((xray.ids[:, -1] == declared).any()) for xray in xrays):
        return
    if not any(bool((xray.targets == declared).any()) for xray in xrays):
        witness = f"padding and the end of a text are both token {end}; rows are padded, and it is nowhere the target"
        yield finding("D04", witness, value=0, threshold=1)


def _of_config(recording: Recording, name: str) -> int | None:
    values = [setting(root, name) for root in recording.roots]
    return next((value for value in values if isinstance(value, int)), None)


def _masked(xray: LogitsXray) -> int | None:
    """The one token that a mask of zeros and ones hides, at the end or at the beginning of rows."""
    for mask in tensors((list(xray.forward.args), dict(xray.forward.kwargs))):
        if mask.shape != xray.ids.shape or not bool(((mask == 0) | (mask == 1)).all()):
            continue
        for hidden in (~mask.bool().cpu(), mask.bool().cpu()):
            tokens = torch.unique(xray.ids[hidden])
            at_an_end = (hidden[:, 0] | hidden[:, -1])[hidden.any(1)]
            if len(tokens) == 1 and not bool(hidden.all()) and bool(at_an_end.all()):
                return int(tokens)
    return None


def _of_runs(xray: LogitsXray) -> int | None:
    """The token that all rows of targets end with, in runs of several lengths."""
    last = xray.targets[:, -1]
    if len(last) < 3 or bool((last < 0).any()) or len(torch.unique(last)) != 1:
        return None
    runs = [int((row.flip(0) != last[0]).int().argmax()) for row in xray.targets]
    return int(last[0]) if len(set(runs)) > 1 and 2 * sum(run >= TAIL for run in runs) >= len(runs) else None


def _weights(reading: Xray) -> Iterator[Finding]:
    """Unequal weights may be meant; a mean of means hardly ever is."""
    yield from mean_of_means(reading)
    smoothing = reading.smoothing[reading.scored]
    if len(smoothing) and float(smoothing.max()) > 0.5:
        yield from uneven_smoothing(smoothing, apart=0.2)
