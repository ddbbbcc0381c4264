"""Which weights a gradient reaches, which have an effect, and how a fresh model's loss begins."""

import math
import re

import torch
import torch.nn.functional as F
from torch import nn

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.checks.positions import TABLE
from clearhead.doctor.instruments.tracing import home_of, without_dropout
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Finding, Where

TRIED = 24  # parameters without gradient whose effect is looked at
ODD = 1.0  # nats from ln V; over 120 architectures fresh ones stay within 0.8
SOMETIMES = re.compile(r"expert|pooler|lora|adapter|mask_token|cls\.|router", re.I)  # used for some inputs only


def gradients(patient: Patient) -> list[Finding]:
    """Every parameter that has an effect receives gradient, and every one has an effect."""
    model = patient.model
    for parameter in model.parameters():
        parameter.grad = None
    inputs = patient.inputs(3)
    with torch.enable_grad(), without_dropout():
        logits = patient.convention.logits(model, inputs)
        if not logits.requires_grad:
            return [finding("I06", "the logits have no graph: nothing of the model can learn")]
        weights = torch.randn(logits.shape, generator=patient.generator(8)).to(logits)
        (weights * logits).sum().backward()  # type: ignore[no-untyped-call]
    bare = [(n, p) for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    for parameter in model.parameters():
        parameter.grad = None
    cut: list[str] = []
    idle: list[str] = []
    for name, parameter in bare[:TRIED]:
        (cut if _has_effect(patient, parameter) else idle).append(name)
    found = [_found_cut(model, cut)] if cut else []
    table = next((name for name in idle if TABLE.search(name)), None)
    reached = {name for name, _ in model.named_parameters()} - {name for name, _ in bare}
    idle = [name for name in idle if not SOMETIMES.search(name) and name != table and not _is_invariant(name, reached)]
    if table:
        found.append(finding("P01", f"{table} has no effect on any logit", value=0.0, where=_owner(model, table)))
    elif idle and not patient.failed & {"dependencies", "sources", "positions", "norms"}:  # they explain it
        names = ", ".join(idle[:3]) + (f" and {len(idle) - 3} more" if len(idle) > 3 else "")
        witness = f"other values in {names} move no logit"
        found.append(finding("A13", witness, value=0.0, where=_owner(model, idle[0]), status="warn"))
    return found


def _is_invariant(name: str, reached: set[str]) -> bool:
    """A bias beside a matrix that learns: that of keys moves no softmax, by arithmetic."""
    return name.endswith("bias") and f"{name[: -len('bias')]}weight" in reached


def _found_cut(model: nn.Module, cut: list[str]) -> Finding:
    order = [name for name, _ in model.named_parameters()]
    last = order.index(cut[0])
    while last + 1 < len(order) and order[last + 1] in cut:
        last += 1  # the cut lies behind the last of a run that nothing reaches
    witness = f"other values in {order[last]} move the logits, and no gradient reaches it"
    return finding("I06", witness, value=0.0, where=_owner(model, order[last], own_code=True))


def _has_effect(patient: Patient, parameter: nn.Parameter) -> bool:
    inputs = patient.inputs(3)
    kept = parameter.detach().clone()
    with torch.no_grad(), without_dropout():
        before = patient.convention.logits(patient.model, inputs)
        try:
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=patient.generator(9)).to(parameter))
            after = patient.convention.logits(patient.model, inputs)
        finally:
            parameter.copy_(kept)
    return float((after - before).abs().max()) > 1e-5 * float(before.abs().max())


def _owner(model: nn.Module, name: str, *, own_code: bool = False) -> Where:
    """The module of a parameter; with `own_code`, the first around it that is not torch's."""
    path = name.rpartition(".")[0]
    module = model.get_submodule(path)
    file, line = home_of(module)
    while file is None and path:
        path = path.rpartition(".")[0]
        file, line = home_of(model.get_submodule(path))
    if own_code:
        return Where(path, type(model.get_submodule(path)).__name__, file, line)
    return Where(name.rpartition(".")[0], type(module).__name__, file, line)


def fresh_loss(patient: Patient) -> list[Finding]:
    """A model that has learned nothing gives every token the same chance."""
    if not patient.spec.fresh:
        raise Skipped("its weights are trained")
    V = patient.found.vocab_size
    inputs, targets = patient.inputs(4, salt=12), patient.inputs(4, salt=13).ids
    with torch.no_grad():
        logits = patient.run(inputs, model=patient.fresh).float()
    if logits.shape[-1] < V or V < 4:
        raise Skipped("its outputs are no logits over the vocabulary")
    loss, even = float(F.cross_entropy(logits.flatten(0, 1), targets.flatten())), math.log(logits.shape[-1])
    if abs(loss - even) <= ODD:
        return []
    witness = f"its loss on random targets is {loss:.2f}, even odds for {logits.shape[-1]} tokens give {even:.2f}"
    return [finding("E04", witness, value=loss - even, threshold=ODD, status="warn")]
