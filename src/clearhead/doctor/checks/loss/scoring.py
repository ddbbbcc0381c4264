"""A model that computes its own loss, called with labels, and what that loss asks of its logits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.convention import Convention
from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.outputs import arrange, find_logits, follow, leaves
from clearhead.doctor.calling.settings import setting
from clearhead.doctor.checks.base import Finding, Skipped, Subject, attempt
from clearhead.doctor.checks.loss.judge import judge
from clearhead.doctor.probes.flow import made_by
from clearhead.doctor.probes.loss import IGNORED, Xray, read, undone
from clearhead.doctor.probes.tensors import change_of
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules, recorded_ops, without_dropout
from clearhead.doctor.state_guard import twin

LOUD = 6.0  # spread of logits above which a softmax is nearly one token, and shows no line
MARKS = (IGNORED, -1)  # labels that people write where there is nothing to learn
ALIKE = 1e-4  # of the logits' spread: they are the same but for rounding


@dataclass(frozen=True)
class LossXray:
    """What a loss asks for."""

    reading: Xray
    logits: Tensor  # (B, T, V), that it is made of
    loss: Tensor
    calls: list[ModuleCall]  # of modules
    compared: frozenset[int]  # the numbers that labels are compared with on its way
    dropouts: list[ModuleCall]  # what would have dropped numbers

    def judged(self, subject: Subject, *, mark: int | None) -> list[Finding]:
        """Its faults, see `judge`. `mark`: the label where there is nothing to learn."""
        names = ("eos_token_id", "eos_id", "eos_idx")
        end_ids = (holder(subject.original, name, None) for holder in (getattr, setting) for name in names)
        ends = mark is not None and mark in end_ids
        return judge(self.reading, self.logits, pad_id=mark, ends=ends)


def judged_by_own_mark(
    subject: Subject, result: LossXray, mark: int | None, again: Callable[[int], LossXray]
) -> list[Finding]:
    """The faults of a loss; if it compares its labels with a token, as with padding, that is the mark.

    Args:
        result: with labels that were marked by `mark`.
        again: the X-ray of labels that are marked by another number.
    """
    for number in result.compared - {mark, IGNORED}:
        with attempt():  # it may not know labels of that number
            findings = again(number).judged(subject, mark=number)
            if not findings or number == subject.pad_id:
                return findings
    return result.judged(subject, mark=mark)


def quieter(subject: Subject) -> nn.Module:
    """The perturbed copy, or one with smaller weights if its logits are too far apart for its loss to be read."""
    inputs = subject.inputs(3, salt=9)
    if float(subject.run(inputs).std()) < LOUD:
        return subject.model
    model = twin(subject.fresh)
    for _ in range(8):
        if float(subject.run(inputs, model=model).std()) < LOUD / 3:
            break
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(0.5)
    return model


def number_of_labels(subject: Subject) -> int:
    """How many there are: one for each token, or fewer classes."""
    return min(subject.calling.vocab_size, subject.inside.logits.shape[-1])


def makes_a_loss(subject: Subject, name: str) -> bool:
    """Whether a parameter of another name takes targets: with it, and only with it, comes a loss."""
    inputs = subject.inputs(2, salt=9)
    with attempt(), torch.enable_grad():
        value = subject.convention.raw(subject.model, inputs, **{name: inputs.ids % number_of_labels(subject)})
        return loss_in(value) is not None and loss_in(subject.convention.raw(subject.model, inputs)) is None
    return False  # it is something else


def xray_of_call(
    subject: Subject, model: nn.Module, name: str, labels: Tensor, convention: Convention | None = None
) -> LossXray:
    """What a call asks of its logits: of those that it computes on its way, as it returns them or in another order.

    Args:
        name: of the parameter that takes labels, beside three rows of tokens.
        labels: (B, T) tokens among which the targets are looked for.

    Raises:
        Skipped: it returns no loss, or its logits are not to be found.
    """
    inputs, dropping, convention = subject.inputs(3, salt=9), without_dropout(), convention or subject.convention
    own_labels = (labels.t() if convention.time_first else labels).clone()  # some write over them
    with torch.enable_grad(), dropping, recorded_modules(model) as calls, recorded_ops() as ops:
        value = convention.raw(model, inputs, **{name: own_labels})
    loss, returned = loss_in(value), logits_in(subject, value, labels.shape)
    if loss is None:
        raise Skipped("it returned no loss")
    computed = [tensor for op in ops.calls for tensor in made_by(op)]
    candidates = [tensor for tensor in (returned, *computed) if tensor is not None and tensor.requires_grad]
    hidden = _logits_among(subject, model, candidates, inputs)
    hidden = returned if hidden is None else hidden
    if hidden is None or not hidden.requires_grad:
        raise Skipped("it returned no loss beside its logits")
    logits, slope = _with_slope(loss, hidden, labels)
    if subject.convention.drops_last:
        slope[:, -1] = 0  # its target is a token more than there are labels
    logits, slope = undone(logits, slope)
    reading = read(slope, logits, labels, float(loss.detach()))
    return LossXray(reading, logits, loss, calls, frozenset(_compared_with(ops.calls, labels)), dropping.dropouts)


def _compared_with(operations: Sequence[ModuleCall], labels: Tensor) -> Iterator[int]:
    """The numbers that labels (B, T), or all but the first of each row, are compared with."""
    forms = [form.flatten() for form in (labels, labels[:, 1:], labels.t(), labels.t()[1:])]
    for call in operations:
        compares = call.name.strip("_") in ("eq", "ne")
        first, number = (call.argument(0, "input"), call.argument(1, "other")) if compares else (None, None)
        if isinstance(first, Tensor) and isinstance(number, int):
            yield from [number] if any(torch.equal(first.cpu().flatten(), form) for form in forms) else []


def _logits_among(subject: Subject, model: nn.Module, tensors: Sequence[Tensor], inputs: Inputs) -> Tensor | None:
    """The first tensor that holds the logits of these inputs."""
    with attempt() as attempted:
        expected = subject.run(replace(inputs, labels=inputs.ids), model=model)
    if attempted.failed:  # it takes rows of another length
        return None
    arranged = ((tensor, arrange(tensor.detach().cpu(), *inputs.ids.shape)) for tensor in tensors)
    return next((tensor for tensor, logits in arranged if logits is not None and are_alike(logits, expected)), None)


def _with_slope(loss: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and the gradient of a loss at them, both (B, T, V) in float64; `Skipped` if it is not made of them."""
    try:
        (gradient,) = torch.autograd.grad(loss, logits)
    except RuntimeError:  # no path leads there, or its graph was freed
        raise Skipped("its loss is not made from the logits that it returns") from None
    arranged, slope = (arrange(t.detach().cpu().double(), *labels.shape) for t in (logits, gradient))
    if arranged is None or slope is None:
        raise Skipped("its logits change their shape when it is given targets")
    return arranged, slope


def loss_in(value: object) -> Tensor | None:
    """The first single number with a graph in what was returned."""
    numbers = (leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor) and leaf.dim() == 0)
    return next((leaf for leaf in numbers if leaf.requires_grad), None)


def logits_in(subject: Subject, value: object, shape: torch.Size) -> Tensor | None:
    """The logits for tokens (B, T) in what was returned."""
    rows, columns = shape
    path = find_logits(value, rows, columns, subject.calling.vocab_size)
    logits = None if path is None else follow(value, path)
    return logits if isinstance(logits, Tensor) else None


def are_alike(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors hold the same logits, but for rounding."""
    return first.shape == second.shape and change_of(second, first) <= ALIKE
