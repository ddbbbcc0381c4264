"""What the training's own loss asks for: which target, of which token, by which arithmetic."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.doctor.calling.outputs import arrange
from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.checks.loss.judge import arithmetic, mean_of_means, the_same_token, too_far, uneven_smoothing
from clearhead.doctor.probes.loss import FEW, STRAIGHT, Xray, is_probability
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding, Where
from clearhead.doctor.training.checks.base import training_check
from clearhead.doctor.training.checks.padding import padding
from clearhead.doctor.training.logits import LogitsXray
from clearhead.doctor.training.recording import Recording, at
from clearhead.doctor.training.trials import CLOSE, difference, other_tokens, run, trying

NEXT = 0.9  # share of targets that are the next token, from which that is what is asked for
GIVEN_AWAY = 0.5  # share of targets that stand in the input as they are
COARSE = 0.05  # misfit of a cross-entropy whose logits have eight bits


@training_check(
    "D02",
    "asking",
    order=110,
    covers=("D01", "D02", "D04", "D05", "D12", "L02", "L03", "L04", "L05", "L07", "M01"),
    holds="the loss is a cross-entropy that asks for the next token or for hidden ones, and not for padding",
)
def asking(recording: Recording) -> list[Finding]:
    """Targets are the next tokens, or hidden ones; the loss is a cross-entropy, and scores no padding."""
    questions = [question for question in recording.xrays if len(question.logits)]
    if not questions:
        raise Skipped("no logits over tokens were found between the model and its loss")
    index = at(next(b.location for b in recording.backwards if questions[0] in b.xrays), "backward")
    findings = [*_arithmetic(questions[0])] if questions[0].is_precise else []
    if not findings:
        findings = [*_offsets(recording, questions)] or [*padding(recording, questions)]
    if not findings and questions[0].is_precise and questions[0].xray.residual <= STRAIGHT:
        findings = [*_weights(questions[0].xray)]
    return [_placed(question, index) for question in findings]


def _placed(fault: Finding, where: Where) -> Finding:
    return replace(fault, where=where) if fault.where == Where() else fault


def _arithmetic(question: LogitsXray) -> Iterator[Finding]:
    """A loss of another form is no fault; one of a form that is known to be a slip is."""
    logits = question.logits.float()
    if is_probability(logits):
        witness = "the model returns probabilities, which sum to 1, and the loss takes the softmax of them"
        yield finding("L03", witness, value=float(logits.max()), threshold=1.0)
        return
    slip = arithmetic(question.xray, question.ids, logits)
    if slip is not None:
        yield slip


def _offsets(recording: Recording, questions: list[LogitsXray]) -> Iterator[Finding]:
    """Where the targets stand among the tokens that the model reads."""
    first = questions[0]
    known = first.targets[first.targets >= 0]
    if len(known) < FEW or len(torch.unique(known)) < FEW - 1 or not first.shares:
        return
    if min(question.shares.get(1, 0.0) for question in questions) >= NEXT:
        yield from _seen_ahead(recording, first)
        return
    offsets = {question.offset for question in questions}
    offset = offsets.pop() if len(offsets) == 1 else None
    if offset == 0:
        causal = _change_ahead(recording) == 0
        yield the_same_token(", which the model reads there", status="fail" if causal else "warn")
    elif offset is not None and offset != 1:
        yield too_far(offset)
    elif first.shares.get(0, 0.0) >= GIVEN_AWAY:
        share = first.shares[0]
        witness = f"{share:.0%} of the targets stand in the input as they are, at the place where they are asked for"
        yield finding("D01", witness, value=share, threshold=GIVEN_AWAY, status="warn")
    elif first.xray.residual <= (STRAIGHT if first.is_precise else COARSE):  # else there is no one target
        yield from _of_others(recording, first)


def _of_others(recording: Recording, question: LogitsXray) -> Iterator[Finding]:
    """Targets that are no part of their own row: those of another one, or of none."""
    targets, ids = question.targets[:, :-1], question.ids[:, 1:]
    fits = ((targets[:, None] == ids[None]) | (targets < 0)[:, None]).all(-1)  # (row of targets, row of tokens)
    asking_rows = (targets >= 0).any(-1)
    if len(ids) > 1 and bool(asking_rows.all()) and bool(fits.any(1).all()) and not bool(fits.diagonal().all()):
        row = int((~fits.diagonal()).nonzero()[0])
        other = int(fits[row].nonzero()[0])
        witness = f"row {row} is asked for the next tokens of row {other}, and every row for those of one row"
        yield finding("D12", witness, value=other, threshold=row)
        return
    same_words = question.logits.shape[-1] == question.embedded.vocab_size
    unlike = same_words and max(question.shares.values()) < GIVEN_AWAY and question.count >= 2 * FEW
    if unlike and _change_ahead(recording) == 0:
        share = question.shares.get(1, 0.0)
        witness = (
            f"the model reads from left to right, and {share:.0%} of its targets are the next token; at no other "
            "distance are there more than half"
        )
        yield finding("D12", witness, value=share, threshold=NEXT, status="warn")


def _seen_ahead(recording: Recording, question: LogitsXray) -> Iterator[Finding]:
    """A model that is asked for the next token, and reads it."""
    change = _change_ahead(recording)
    if change:
        witness = (
            f"the targets are the next tokens, and changing the last token moves earlier scored logits by {change:.2g} "
            "of the largest"
        )
        yield finding("M01", witness, value=change, threshold=CLOSE)


def _change_ahead(recording: Recording) -> float | None:
    """How far another last token moves the scored logits before it, in evaluation; None if that cannot be tried."""
    live = [candidate for candidate in recording.xrays if candidate.forward.args or candidate.forward.kwargs]
    if not live:
        return None
    question = live[-1]
    ids = question.embedded.ids
    turned = ids.shape != question.ids.shape and ids.t().shape == question.ids.shape
    rows = ids.t() if turned else ids
    changed = rows.clone()
    changed[:, -1] = (rows[:, -1] + 1) % question.embedded.vocab_size
    scored = (question.targets[:, :-1] >= 0)[..., None]
    with attempt() as attempted, trying(recording, question.forward.module):
        before = _logits(question, rows.shape)
        again = _logits(question, rows.shape)
        with other_tokens(question.embedded, changed.t() if turned else changed):
            after = _logits(question, rows.shape)
    if attempted.failed:  # its batch may be gone, or take part in one step only: the report's paths tell it
        recording.event_log.untried.append(f"another last token could not be tried ({attempted.kind})")
        return None
    if before is None or after is None or again is None or not difference([before], [after]):
        return None
    early = [logits[: len(scored), :-1].masked_fill(~scored, 0) for logits in (before, again, after)]
    floor, change = difference(early[:1], early[1:2]), difference(early[:1], early[2:])
    return change if change > max(CLOSE, 20 * floor) else 0.0


def _logits(question: LogitsXray, shape: torch.Size) -> Tensor | None:
    paths = [output.path for output in question.forward.outputs if output.is_used]
    outputs = run(question.forward, training=False)
    arranged = arrange(outputs[paths.index(question.path)].float(), *shape)
    return arranged.cpu() if arranged is not None else None


def _weights(reading: Xray) -> Iterator[Finding]:
    """Equal weights are asked for unless they were chosen; the mean of means is hardly ever."""
    yield from mean_of_means(reading)
    smoothing = reading.smoothing[reading.scored]
    if len(smoothing) and float(smoothing.max()) > 0.5:
        yield from uneven_smoothing(smoothing, apart=0.2)
