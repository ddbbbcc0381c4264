"""A model that computes its own loss, called with labels, and what that loss asks of its logits."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.outputs import arrange, find_logits, follow, leaves
from clearhead.doctor.checks.base import Skipped, Subject, attempt
from clearhead.doctor.probes.flow import made_by
from clearhead.doctor.probes.loss import IGNORED, Xray, read, undone
from clearhead.doctor.probes.tensors import change_of
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules, recorded_ops
from clearhead.doctor.state_guard import twin

LOUD = 6.0  # spread of logits above which a softmax is nearly one token, and shows no line
MARKS = (IGNORED, -1)  # labels that people write where there is nothing to learn
ALIKE = 1e-4  # of the logits' spread: they are the same but for rounding


@dataclass(frozen=True)
class Scored:
    """One call with labels: its loss and logits with their graph, and the modules that were called."""

    loss: Tensor
    logits: Tensor
    labels: Tensor
    calls: list[ModuleCall]


class Unscored(NamedTuple):
    """A model, and its logits (B, T, V) without labels."""

    model: nn.Module
    logits: Tensor


def quieter(subject: Subject) -> Unscored:
    """The perturbed copy, or one with smaller weights if its logits are too far apart for its loss to be read."""
    inputs = subject.inputs(3, salt=9)
    logits = subject.run(inputs)
    if float(logits.std()) < LOUD:
        return Unscored(subject.model, logits)
    model = twin(subject.fresh)
    logits = subject.run(inputs, model=model)
    for _ in range(8):
        if float(logits.std()) < LOUD / 3:
            break
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(0.5)
        logits = subject.run(inputs, model=model)
    return Unscored(model, logits)


def half_padded(subject: Subject, tokens: Tensor, mark: int | None) -> Tensor:
    """Two of these three rows as they are, and the second half of the last marked as nothing to learn."""
    tokens = tokens.clone()
    if mark is not None:
        tokens[2, subject.calling.T // 2 :] = mark
    return tokens


def end_ids(subject: Subject) -> list[object]:
    """The token that ends a text, as the model and its config call it."""
    owners = (subject.original, getattr(subject.original, "config", None))
    return [getattr(owner, name, None) for owner in owners for name in ("eos_token_id", "eos_id", "eos_idx")]


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


def scored(subject: Subject, unscored: Unscored, name: str, labels: Tensor) -> Scored:
    """The loss for these labels, and the logits that it is made of: those returned, or those computed on the way.

    Raises:
        Skipped: it returns no loss, or its logits are not to be found.
    """
    inputs, arranged = subject.inputs(3, salt=9), labels.t() if subject.convention.time_first else labels
    with torch.enable_grad(), recorded_modules(unscored.model) as calls:  # a copy: some write over their labels
        value = subject.convention.raw(unscored.model, inputs, **{name: arranged.clone()})
    loss, logits = loss_in(value), logits_in(subject, value, labels.shape)
    if loss is None:
        raise Skipped("it returned no loss")
    if logits is not None and logits.requires_grad and _is_of(unscored, logits, labels.shape):
        return Scored(loss, logits, labels, calls)
    with torch.enable_grad(), recorded_ops() as ops:
        again = loss_in(subject.convention.raw(unscored.model, inputs, **{name: arranged.clone()}))
    tensors = (tensor for call in ops.calls for tensor in made_by(call) if tensor.requires_grad)
    hidden = next((tensor for tensor in tensors if _is_of(unscored, tensor, labels.shape)), None)
    if again is not None and hidden is not None:  # it returns none, or in another order
        return Scored(again, hidden, labels, calls)
    if logits is None or not logits.requires_grad:
        raise Skipped("it returned no loss beside its logits")
    return Scored(loss, logits, labels, calls)


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


def _is_of(unscored: Unscored, logits: Tensor, shape: torch.Size) -> bool:
    arranged = arrange(logits.detach().cpu(), *shape)
    return arranged is not None and are_alike(arranged, unscored.logits)


def are_alike(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors hold the same logits, but for rounding."""
    return first.shape == second.shape and change_of(second, first) <= ALIKE


def xrayed(loss: Tensor, logits: Tensor, labels: Tensor, *, extra: bool = False) -> tuple[Xray, Tensor]:
    """What a loss asks for, and of which logits (B, T, V).

    Args:
        extra: the last position was added to the row, and does not count.

    Raises:
        Skipped: the loss is not made of these logits.
    """
    arranged, slope = with_slope(loss, logits, labels.shape)
    if extra:
        slope[:, -1] = 0
    arranged, slope = undone(arranged, slope)
    return read(slope, arranged, labels, float(loss.detach())), arranged


def with_slope(loss: Tensor, logits: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Logits and the gradient of a loss at them, both (B, T, V) in float64, for tokens of shape (B, T).

    Raises:
        Skipped: the loss is not made of these logits, or not of so many.
    """
    try:
        (gradient,) = torch.autograd.grad(loss, logits)
    except RuntimeError:  # no path leads there, or its graph was freed
        raise Skipped("its loss is not made from the logits that it returns") from None
    arranged, slope = (arrange(t.detach().cpu().double(), *shape) for t in (logits, gradient))
    if arranged is None or slope is None:
        raise Skipped("its logits change their shape when it is given targets")
    return arranged, slope
