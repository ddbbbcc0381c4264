"""Whether the numbers that a model holds have any effect."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from clearhead.doctor.calling import Inputs
from clearhead.doctor.calling.outputs import leaves
from clearhead.doctor.probes.tensors import relative_change
from clearhead.doctor.probes.tracing import quiet
from clearhead.doctor.state_guard import kept
from clearhead.doctor.subject import Subject

OTHER = 0.3  # standard deviation of the noise that makes numbers others
NUDGE = 1e-4  # the same, so small that no choice between experts or tokens changes


def moves(subject: Subject, tensors: Iterable[Tensor], *, padding: bool = True) -> bool:
    """Whether other numbers in these parameters or buffers of the perturbed copy move any logit.

    Args:
        padding: also change the rows of embeddings that are declared to be padding's, and are never learned.
    """
    (before,), (after,) = _with_noise(subject, tensors, OTHER, padding=padding)
    return relative_change(before, after) > 1e-5


def moves_beside(subject: Subject, tensor: Tensor) -> bool:
    """Whether other numbers in it move what the model returns beside the logits, as the weights of a second head do."""
    pairs = zip(*_with_noise(subject, [tensor], OTHER, _beside), strict=True)
    return any(relative_change(before, after) > 1e-5 for before, after in pairs)


def is_threshold(subject: Subject, tensor: Tensor) -> bool:
    """Whether numbers that are a little different move no logit to the last bit, although others do.

    They are only compared with, like the balance of a router that chooses experts. Their derivative is zero.
    """
    (before,), (after,) = _with_noise(subject, [tensor], NUDGE)
    return torch.equal(before, after)


def padding_rows(model: nn.Module) -> dict[int, int]:
    """The row of each table of embeddings that is declared to be padding's, by the id of its weight."""
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    return {id(table.weight): table.padding_idx for table in tables if table.padding_idx is not None}


def _logits(subject: Subject, inputs: Inputs) -> list[Tensor]:
    return [subject.convention.logits(subject.model, inputs)]


def _beside(subject: Subject, inputs: Inputs) -> list[Tensor]:
    """What is returned beside the logits. What lies deeper or has more axes is a cache or a record of the layers."""
    returned = leaves(subject.convention.raw(subject.model, inputs))
    tensors = [leaf for path, leaf in returned if len(path) == 1 and path != subject.convention.output]
    return [leaf for leaf in tensors if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() <= 3]


def _with_noise(
    subject: Subject,
    tensors: Iterable[Tensor],
    size: float,
    watched: Callable[[Subject, Inputs], list[Tensor]] = _logits,
    *,
    padding: bool = True,
) -> tuple[list[Tensor], list[Tensor]]:
    """What is watched before, and with noise of this size on the tensors."""
    inputs, rows = subject.inputs(3), {} if padding else padding_rows(subject.model)
    numbers = [tensor for tensor in tensors if tensor.is_floating_point()]
    with quiet(), kept(numbers):
        before = watched(subject, inputs)
        for salt, tensor in enumerate(numbers):
            noise = torch.randn(tensor.shape, generator=subject.generator(9 + 100 * salt)).to(tensor)
            if id(tensor) in rows:
                noise[rows[id(tensor)]] = 0
            tensor.add_(size * noise)
        return before, watched(subject, inputs)
