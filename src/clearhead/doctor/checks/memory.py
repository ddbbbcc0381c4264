"""A call changes neither its inputs nor the answer of the next call."""

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import CACHE, signature_of
from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.checks.base import Finding, Subject, attempt, finding, model_check
from clearhead.doctor.probes.localization import first_unlike
from clearhead.doctor.probes.locations import place_of_call, place_of_module
from clearhead.doctor.probes.tensors import change_of
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules
from clearhead.doctor.state_guard import perturbed, seeded

CHANGED = 1e-4  # of the logits' spread


@model_check("T08", "memory", order=40, covers=("K06", "D18"))
def memory(subject: Subject) -> list[Finding]:
    """A call leaves its input tensors as they are, and does not change the result of the next call."""
    return _remembered(subject) or _written_over(subject)


def _written_over(subject: Subject) -> list[Finding]:
    """Any tensor that the model is given, other than a cache, which is there to be written."""
    kept: list[tuple[str, Tensor, Tensor]] = []

    def note(module: nn.Module, args: tuple[object, ...], named: dict[str, object]) -> None:
        names = [parameter.name for parameter in signature_of(subject.original)]
        for name, value in (*zip(names, args, strict=False), *named.items()):
            kept.extend((name, tensor, tensor.clone()) for tensor in tensors(value) if not CACHE.search(name))

    with subject.model.register_forward_pre_hook(note, with_kwargs=True, prepend=True), torch.no_grad():
        subject.run(subject.inputs(3))
    for name, tensor, before in kept:
        if tensor.shape != before.shape:
            witness = f"a call reshapes its '{name}', {tuple(before.shape)}, to {tuple(tensor.shape)}"
            return [finding("D18", witness, where=place_of_module("", subject.model))]
        changed = (tensor != before) & ~(tensor.isnan() & before.isnan())
        if changed.any():
            index = tuple(changed.nonzero()[0].tolist())
            was, now = before[index].item(), tensor[index].item()
            witness = f"a call overwrites number {list(index)} of its '{name}': {was:g} becomes {now:g}"
            return [finding("D18", witness, where=place_of_module("", subject.model))]
    return []


def _remembered(subject: Subject) -> list[Finding]:
    """Other calls, with longer rows, have gone before; a new copy is given the same rows for comparison."""
    if subject.is_large:
        return []  # so large a model is not copied once more
    for T in (max(2, subject.calling.T - 2), subject.calling.T):  # some models take rows of one length only
        inputs = subject.inputs(2, salt=21, T=T)
        new = _answer(perturbed(subject.original, subject.seed, subject.device), subject, inputs)
        if new is not None:
            break
    else:
        return []
    causes, where = (("T08", 0.7), ("K06", 0.3)), place_of_module("", subject.model)
    used = _answer(subject.model, subject, inputs)
    if used is None:
        witness = f"{len(inputs.ids)} rows of {T} tokens fail after a call with other rows, but not in a new copy"
        return [finding(causes, witness, where=where)]
    value = change_of(new[0], used[0])
    if not value > CHANGED:
        return []
    guilty = first_unlike(new[1], used[1])
    witness = f"after other calls, the same rows have other logits than in a new copy, by {value:.1e} of their spread"
    where = where if guilty is None else place_of_call(guilty)
    return [finding(causes, witness, value=value, threshold=CHANGED, where=where)]


def _answer(model: nn.Module, subject: Subject, inputs: Inputs) -> tuple[Tensor, list[ModuleCall]] | None:
    """Logits (B, T, V) and the modules called; None if the call fails."""
    batch = inputs.rows(torch.arange(len(inputs.ids)))  # a copy: the call may write over it
    with attempt(), seeded(subject.seed), recorded_modules(model) as calls:
        return subject.run(batch, model=model), calls
    return None  # whatever a stranger's code may raise
