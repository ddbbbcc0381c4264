"""What a call leaves behind: nothing in the tensors that it was given, and nothing that the next call would notice."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.doctor.borrow import shaken
from clearhead.doctor.checks.base import finding
from clearhead.doctor.conventions.inputs import Inputs
from clearhead.doctor.instruments.places import place_of_call, place_of_module
from clearhead.doctor.instruments.tracing import Call, recorded_modules
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Finding

CHANGED = 1e-4  # of the logits' spread


def memory(patient: Patient) -> list[Finding]:
    """The ids that it is given stay as they are, and a model that was called before answers as a new one does."""
    return _remembered(patient) or _written_over(patient)


def _written_over(patient: Patient) -> list[Finding]:
    inputs = patient.inputs(3)
    given = {"ids": inputs.ids, "source": inputs.source}
    kept = {name: tensor.clone() for name, tensor in given.items() if tensor is not None}
    with patient.quiet():
        patient.run(inputs)
    for name, tensor in kept.items():
        changed = given[name] != tensor
        if changed.any():  # type: ignore[union-attr]
            row, place = (int(part) for part in changed.nonzero()[0])  # type: ignore[union-attr]
            now = int(given[name][row, place])  # type: ignore[index]
            was = int(tensor[row, place])
            witness = f"a call writes {now} over token {place} of row {row} of its {name}, which was {was}"
            where = place_of_module("", patient.model)
            return [finding("D18", witness, where=where)]
    return []


def _remembered(patient: Patient) -> list[Finding]:
    """Other calls have gone before, with longer rows; a copy that has seen none is asked the same."""
    if patient.is_large:
        return []  # so large a model is not copied once more
    inputs = patient.inputs(2, salt=21, T=max(2, patient.found.T - 2))
    first = _asked(shaken(patient.original, patient.seed, patient.device), patient, inputs)
    if first is None:  # it takes rows of one length only
        inputs = patient.inputs(2, salt=21)
        first = _asked(shaken(patient.original, patient.seed, patient.device), patient, inputs)
    second = _asked(patient.model, patient, inputs)
    where = place_of_module("", patient.model)
    if first is None:
        return []
    if second is None:
        rows, T = inputs.ids.shape
        witness = f"{rows} rows of {T} tokens fail after a call with other rows, and do not in a new copy"
        return [finding((("T08", 0.7), ("K06", 0.3)), witness, where=where)]
    spread = float(first.logits.std()) or 1.0
    value = float((second.logits - first.logits).abs().max()) / spread
    if not value > CHANGED:
        return []
    for one, other in zip(first.calls, second.calls, strict=False):
        if not _differ(one.inputs, other.inputs) and _differ(one.outputs, other.outputs) and one.module is not None:
            where = place_of_call(one)
            break
    witness = f"after other calls the same rows have other logits than in a new copy, by {value:.1e} of their spread"
    return [finding((("T08", 0.7), ("K06", 0.3)), witness, value=value, threshold=CHANGED, where=where)]


@dataclass(frozen=True)
class Answer:
    """Logits (B, T, V), and the modules that were called."""

    logits: Tensor
    calls: list[Call]


def _asked(model: nn.Module, patient: Patient, inputs: Inputs) -> Answer | None:
    """One answer; None where it fails."""
    torch.manual_seed(patient.seed)  # what is drawn is drawn alike
    given = inputs.rows(torch.arange(len(inputs.ids)))  # a call may write over them
    try:
        with patient.quiet(), recorded_modules(model) as calls:
            return Answer(patient.run(given, model=model), calls)
    except Exception:  # whatever a stranger's code may raise
        return None


def _differ(one: list[Tensor], other: list[Tensor]) -> bool:
    return any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(one, other, strict=False))
