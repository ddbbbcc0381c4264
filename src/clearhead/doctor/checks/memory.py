"""What a call leaves behind: nothing in the tensors that it was given, and nothing that the next call would notice."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import finding, model_check
from clearhead.doctor.probes.locations import place_of_call, place_of_module
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.state_guard import perturbed
from clearhead.doctor.subject import Subject

CHANGED = 1e-4  # of the logits' spread


@model_check(
    "T08",
    "memory",
    order=40,
    covers=("T08", "K06", "D18"),
    holds="a call writes nothing over its inputs, and the next call does not notice it",
)
def memory(subject: Subject) -> list[Finding]:
    """The ids that it is given stay as they are, and a model that was called before answers as a new one does."""
    return _remembered(subject) or _written_over(subject)


def _written_over(subject: Subject) -> list[Finding]:
    inputs = subject.inputs(3)
    tensors = {"ids": inputs.ids, "source": inputs.source}
    kept = {name: tensor.clone() for name, tensor in tensors.items() if tensor is not None}
    with subject.quiet():
        subject.run(inputs)
    for name, tensor in kept.items():
        changed = tensors[name] != tensor
        if changed.any():  # type: ignore[union-attr]
            row, position = (int(part) for part in changed.nonzero()[0])  # type: ignore[union-attr]
            now = int(tensors[name][row, position])  # type: ignore[index]
            was = int(tensor[row, position])
            witness = f"a call writes {now} over token {position} of row {row} of its {name}, which was {was}"
            where = place_of_module("", subject.model)
            return [finding("D18", witness, where=where)]
    return []


def _remembered(subject: Subject) -> list[Finding]:
    """Other calls have gone before, with longer rows; a copy that has seen none is asked the same."""
    if subject.is_large:
        return []  # so large a model is not copied once more
    inputs = subject.inputs(2, salt=21, T=max(2, subject.calling.T - 2))
    first = _asked(perturbed(subject.original, subject.seed, subject.device), subject, inputs)
    if first is None:  # it takes rows of one length only
        inputs = subject.inputs(2, salt=21)
        first = _asked(perturbed(subject.original, subject.seed, subject.device), subject, inputs)
    second = _asked(subject.model, subject, inputs)
    where = place_of_module("", subject.model)
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
    for call, other in zip(first.calls, second.calls, strict=False):
        if not _differ(call.inputs, other.inputs) and _differ(call.outputs, other.outputs) and call.module is not None:
            where = place_of_call(call)
            break
    witness = f"after other calls the same rows have other logits than in a new copy, by {value:.1e} of their spread"
    return [finding((("T08", 0.7), ("K06", 0.3)), witness, value=value, threshold=CHANGED, where=where)]


@dataclass(frozen=True)
class Answer:
    """Logits (B, T, V), and the modules that were called."""

    logits: Tensor
    calls: list[ModuleCall]


def _asked(model: nn.Module, subject: Subject, inputs: Inputs) -> Answer | None:
    """One answer; None where it fails."""
    torch.manual_seed(subject.seed)  # what is drawn is drawn alike
    batch = inputs.rows(torch.arange(len(inputs.ids)))  # a call may write over them
    with attempt(), subject.quiet(), recorded_modules(model) as calls:
        return Answer(subject.run(batch, model=model), calls)
    return None  # whatever a stranger's code may raise


def _differ(first: list[Tensor], second: list[Tensor]) -> bool:
    return any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(first, second, strict=False))
