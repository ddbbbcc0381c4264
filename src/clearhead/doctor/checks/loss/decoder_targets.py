"""What a decoder that makes its own input from the labels has read, against what it is asked for."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.convention import Convention, here
from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import parameters_of
from clearhead.doctor.calling.outputs import arrange, find_logits, follow, leaves
from clearhead.doctor.checks.base import Skipped, finding, model_check
from clearhead.doctor.checks.loss.losses import labels_parameter
from clearhead.doctor.checks.loss.scoring import LOUD, with_slope
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.loss import IGNORED, STRAIGHT, Xray, read
from clearhead.doctor.probes.tracing import without_dropout
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject

NEAR = (2, 1, 0, -1, -2, -3)  # places of a label, counted from the position that may have read it


@model_check(
    "D02",
    "decoder targets",
    order=250,
    covers=("D01", "D02", "D05", "D18"),
    holds="a decoder that makes its input from the labels is asked for the first token that it has not read",
    needs=("finite", "deterministic"),
    of_tokens=True,
)
def decoder_targets(subject: Subject) -> list[Finding]:
    """Every position is asked for the first label that it has not read, and for none that is marked as no label."""
    name = labels_parameter(subject)
    optional = {p.name for p in parameters_of(subject.model) if p.default is not p.empty}
    parameters = [parameter for parameter, filler in subject.convention.call if filler == "ids"]
    convention = subject.convention
    if name is None or not convention.has_source or convention.time_first or not set(parameters) <= optional:
        raise Skipped("it does not make its decoder's input from labels")
    alone = replace(convention, call=tuple(pair for pair in convention.call if pair[1] != "ids"))
    last = _last_read(subject, alone, name)
    reading = _asked(subject, alone, name)
    if last is None or reading is None or reading.offset is None:
        raise Skipped("its logits or its loss do not depend on labels alone")
    offset = reading.offset
    if offset == last + 1:
        return _marks_asked(subject, alone, name)
    where = place_of_module("", subject.model)
    witness = f"position 3 has read the labels up to {3 + last}, and is asked for label {3 + offset}"
    if offset > last + 1:
        return [finding("D02", f"{witness}: {3 + last + 1} is never asked for", value=offset, where=where)]
    return [finding("D01", witness, value=offset, where=where)]


def _logits(
    subject: Subject, convention: Convention, model: nn.Module, inputs: Inputs, arguments: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Logits (B, T, V), and the loss.

    Raises:
        Skipped: it returns none.
    """
    with without_dropout():
        with attempt() as attempted:
            value = convention.raw(model, inputs, **arguments)
        if attempted.failed:
            raise Skipped(f"labels alone are not enough for it ({attempted.kind})")
    rows, columns = inputs.ids.shape
    path = find_logits(value, rows, columns, subject.calling.vocab_size)
    logits = None if path is None else follow(value, path)
    scalars = [leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor) and leaf.dim() == 0]
    if not isinstance(logits, Tensor) or not scalars:
        raise Skipped("it returns no loss beside its logits")
    return here(logits, convention.device), here(scalars[0], convention.device)


def _last_read(subject: Subject, convention: Convention, name: str) -> int | None:
    """The last label that every position has read, counted from itself; None if they read none in common.

    The last two labels and positions stay out: some models put a row's last label in front of it.
    """
    T = subject.calling.T
    inputs = subject.inputs().rows(torch.zeros(T + 1, dtype=torch.long))
    labels = inputs.ids.clone()
    other = subject.inputs(1, salt=17).ids[0]
    labels[torch.arange(T), torch.arange(T)] = torch.where(other == labels[0], other.roll(1), other)
    with torch.no_grad():
        before, after = (
            arrange(_logits(subject, convention, subject.model, inputs, {name: ids})[0], T + 1, T)
            for ids in (inputs.ids, labels)
        )
    if before is None or after is None:
        return None
    moved = (after - before).abs().amax(-1)[:T].t()  # (T, T): position, label
    alive = moved > 1e-5 * float(moved.max())
    inner = range(3, T - 2)
    return next((k for k in NEAR if all(alive[t, t + k] for t in inner if t + k < T - 2)), None)


def _marks_asked(subject: Subject, convention: Convention, name: str) -> list[Finding]:
    """Labels that are marked to be left out, and are asked for all the same: as where they were written over before."""
    try:
        reading = _asked(subject, convention, name, marked=3)
    except Skipped:  # it knows no such mark
        return []
    if reading is None or not bool((reading.scored & (reading.ids == IGNORED)).any()):
        return []
    row, position = (int(part) for part in (reading.scored & (reading.ids == IGNORED)).nonzero()[0])
    witness = f"given '{name}' alone, position {position} of row {row} has a label {IGNORED}, and is asked for a token"
    return [finding((("D05", 0.8), ("D18", 0.2)), witness, where=place_of_module("", subject.model))]


def _asked(subject: Subject, convention: Convention, name: str, *, marked: int = 0) -> Xray | None:
    """What the loss asks for, where so many labels at the end of the last row are marked to be left out."""
    inputs = subject.inputs(3, salt=9)
    labels = inputs.ids.clone()
    labels[2, subject.calling.T - marked :] = IGNORED
    with torch.no_grad():
        is_loud = float(subject.run(inputs).std()) > LOUD
    with torch.enable_grad():
        model = subject.fresh if is_loud else subject.model
        logits, loss = _logits(subject, convention, model, inputs, {name: labels.clone()})
        if not logits.requires_grad or not loss.requires_grad:
            return None
    there, slope = with_slope(loss, logits, inputs.ids.shape)
    reading = read(slope, there, labels, float(loss.detach()))
    return None if reading.residual > STRAIGHT else reading
