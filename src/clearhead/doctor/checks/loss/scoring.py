"""A model that computes its own loss, called with labels, and what that loss asks of its logits."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.outputs import arrange, find_logits, follow, leaves
from clearhead.doctor.checks.base import Skipped
from clearhead.doctor.probes.flow import made_by
from clearhead.doctor.probes.loss import IGNORED, Xray, read, undone
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules, recorded_ops
from clearhead.doctor.problems import attempt
from clearhead.doctor.state_guard import twin
from clearhead.doctor.subject import Subject

LOUD = 6.0  # spread of logits above which a softmax is all but one token, and shows no line
MARKS = (IGNORED, -1)  # what people write where there is nothing to learn
ALIKE = 1e-4  # of the logits' spread: they are the same but for rounding


@dataclass(frozen=True)
class Scored:
    """One call with labels: its loss and logits with their graph, and the modules that were called."""

    loss: Tensor
    logits: Tensor
    labels: Tensor
    calls: list[ModuleCall]


class Unscored(NamedTuple):
    """A model, and its logits (B, T, V) where it is given no labels."""

    model: nn.Module
    logits: Tensor


def quieter(subject: Subject) -> Unscored:
    """The perturbed copy, or a fainter one of the same make whose logits are close enough to each other to be read."""
    inputs = subject.inputs(3, salt=9)
    with torch.no_grad():
        logits = subject.run(inputs)
        if float(logits.std()) < LOUD:
            return Unscored(subject.model, logits)
        model = twin(subject.fresh)
        logits = subject.run(inputs, model=model)
        for _ in range(8):
            if float(logits.std()) < LOUD / 3:
                break
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(0.5)
            logits = subject.run(inputs, model=model)
    return Unscored(model, logits)


def number_of_labels(subject: Subject) -> int:
    """How many there are: one for each token, or fewer classes."""
    return min(subject.calling.vocab_size, subject.inside.logits.shape[-1])


def makes_a_loss(subject: Subject, name: str) -> bool:
    """Whether a parameter of another name takes targets: with it, and not without, comes a number to learn from."""
    inputs = subject.inputs(2, salt=9)
    with torch.enable_grad():
        with attempt():
            value = subject.convention.raw(subject.model, inputs, **{name: inputs.ids % number_of_labels(subject)})
            return loss_in(value) is not None and loss_in(subject.convention.raw(subject.model, inputs)) is None
        return False  # it is something else


def scored(subject: Subject, unscored: Unscored, name: str, labels: Tensor) -> Scored:
    """The loss for these labels, and the logits that it is made of.

    Raises:
        Skipped: it returns no loss, or its logits are not to be found.
    """
    inputs = subject.inputs(3, salt=9)
    expected = labels.t() if subject.convention.time_first else labels
    with torch.enable_grad(), recorded_modules(unscored.model) as calls:  # of a copy: some write over their labels
        value = subject.convention.raw(unscored.model, inputs, **{name: expected.clone()})
    loss = loss_in(value)
    path = find_logits(value, len(inputs.ids), subject.calling.T, subject.calling.vocab_size)
    logits = None if path is None else follow(value, path)
    if loss is not None and isinstance(logits, Tensor) and logits.requires_grad:
        if _is_there(logits, unscored, labels.shape):
            return Scored(loss, logits, labels, calls)
    elif loss is None:
        raise Skipped("it returned no loss")
    hidden = _hidden(subject, unscored, {name: expected.clone()}, labels.shape)
    if hidden is not None:  # it returns none, or in another order
        return Scored(*hidden, labels, calls)
    if not isinstance(logits, Tensor) or not logits.requires_grad:
        raise Skipped("it returned no loss beside its logits")
    return Scored(loss, logits, labels, calls)


def loss_in(value: object) -> Tensor | None:
    """The first number with a graph in what was returned."""
    numbers = (leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor) and leaf.dim() == 0)
    return next((leaf for leaf in numbers if leaf.requires_grad), None)


def _is_there(logits: Tensor, unscored: Unscored, shape: torch.Size) -> bool:
    there = arrange(logits.detach().cpu(), *shape)
    return there is not None and alike(there, unscored.logits)


def alike(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors hold the same logits, but for rounding."""
    return first.shape == second.shape and float((first - second).abs().max()) <= ALIKE * float(second.std())


def _hidden(
    subject: Subject, unscored: Unscored, arguments: dict[str, Tensor], shape: torch.Size
) -> tuple[Tensor, Tensor] | None:
    """The loss and, of what was computed for it, the first tensor that holds the logits of a call without labels."""
    with torch.enable_grad(), recorded_ops() as ops:
        loss = loss_in(subject.convention.raw(unscored.model, subject.inputs(3, salt=9), **arguments))
    for call in ops.calls:
        for tensor in made_by(call):
            if loss is not None and tensor.requires_grad and _is_there(tensor, unscored, shape):
                return loss, tensor
    return None


def xrayed(scored: Scored) -> tuple[Xray, Tensor]:
    """What is asked for, and of which logits (B, T, V).

    Raises:
        Skipped: the loss is made of other numbers.
    """
    logits, slope = undone(*with_slope(scored.loss, scored.logits, scored.labels.shape))
    return read(slope, logits, scored.labels, float(scored.loss.detach())), logits


def with_slope(loss: Tensor, logits: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Logits and the gradient of a loss at them, (B, T, V) in float64 each.

    Args:
        shape: of the tokens, (B, T).

    Raises:
        Skipped: the loss is not made of these logits, or not of so many.
    """
    try:
        (gradient,) = torch.autograd.grad(loss, logits)
    except RuntimeError:  # no way leads there, or it was gone already
        raise Skipped("its loss is not made from the logits that it returns") from None
    there, slope = (arrange(t.detach().cpu().double(), *shape) for t in (logits, gradient))
    if there is None or slope is None:
        raise Skipped("its logits change their shape when it is given targets")
    return there, slope
