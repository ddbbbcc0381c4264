"""What a decoder that makes its own input from the labels has read, compared with what it is asked for."""

from dataclasses import replace

import torch

from clearhead.doctor.calling.convention import Convention, here
from clearhead.doctor.calling.names import parameters_of
from clearhead.doctor.calling.outputs import arrange
from clearhead.doctor.checks.base import STEADY, Finding, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.checks.loss.losses import labels_parameter
from clearhead.doctor.checks.loss.scoring import logits_in, quieter, xray_of_call
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.loss import STRAIGHT, Xray
from clearhead.doctor.probes.tracing import quiet

NEAR = (2, 1, 0, -1, -2, -3)  # of a label, counted from the position that may have read it


@model_check("D02", "decoder targets", order=250, covers=("D01",), needs=STEADY, of_tokens=True)
def decoder_targets(subject: Subject) -> list[Finding]:
    """A decoder that makes its input from the labels is asked for the first label that it has not read."""
    name, convention = labels_parameter(subject), subject.convention
    optional = {p.name for p in parameters_of(subject.model) if p.default is not p.empty}
    parameters = {parameter for parameter, filler in convention.call if filler == "ids"}
    if name is None or not convention.has_source or convention.time_first or not parameters <= optional:
        raise Skipped("it does not make its decoder's input from labels")
    alone = replace(convention, call=tuple(pair for pair in convention.call if pair[1] != "ids"))
    last, reading = _last_read(subject, alone, name), _asked_for(subject, alone, name)
    if last is None or reading is None or reading.offset is None:
        raise Skipped("its logits or its loss do not depend on labels alone")
    offset, where = reading.offset, place_of_module("", subject.model)
    if offset == last + 1:
        return []
    witness = f"position 3 has read the labels up to {3 + last}, and is asked for label {3 + offset}"
    if offset > last + 1:
        return [finding("D02", f"{witness}: {3 + last + 1} is never asked for", value=offset, where=where)]
    return [finding("D01", witness, value=offset, where=where)]


def _last_read(subject: Subject, convention: Convention, name: str) -> int | None:
    """The last label that every position has read, counted from the position; None if they have none in common.

    The last two labels and positions do not count: some models put a row's last label in front of it.
    """
    T = subject.calling.T
    inputs = subject.inputs().rows(torch.zeros(T + 1, dtype=torch.long))
    labels, other = inputs.ids.clone(), subject.inputs(1, salt=17).ids[0]
    labels[torch.arange(T), torch.arange(T)] = torch.where(other == labels[0], other.roll(1), other)
    with attempt() as attempted, quiet():
        values = [convention.raw(subject.model, inputs, **{name: ids}) for ids in (inputs.ids, labels)]
    if attempted.failed:
        raise Skipped(f"labels alone are not enough for it ({attempted.kind})")
    logits = [logits_in(subject, value, inputs.ids.shape) for value in values]
    before, after = (arrange(here(x, convention.device), T + 1, T) if x is not None else None for x in logits)
    if before is None or after is None:
        return None
    moved = (after - before).abs().amax(-1)[:T].t()  # (T, T): position, label
    alive = moved > 1e-5 * float(moved.max())
    return next((k for k in NEAR if all(alive[t, t + k] for t in range(3, T - 2) if t + k < T - 2)), None)


def _asked_for(subject: Subject, convention: Convention, name: str) -> Xray | None:
    """What the loss asks for; None if that is no cross-entropy."""
    reading = xray_of_call(subject, quieter(subject), name, subject.inputs(3, salt=9).ids, convention).reading
    return None if reading.residual > STRAIGHT else reading
