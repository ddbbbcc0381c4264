"""Whether numbers that a model holds have any effect, and whose they are."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from clearhead.doctor.calling import Inputs
from clearhead.doctor.calling.outputs import leaves
from clearhead.doctor.probes.tracing import without_dropout
from clearhead.doctor.subject import Subject

OTHER = 0.3  # standard deviation of what makes numbers other ones
NUDGE = 1e-4  # the same, so small that no choice between experts or tokens falls differently


def moves(subject: Subject, tensors: Iterable[Tensor], *, padding: bool = True) -> bool:
    """Whether other numbers in these parameters or buffers of the perturbed copy move any logit.

    Args:
        padding: change the rows of tables too that are declared to be padding's, and are never learned.
    """
    kept_still = {} if padding else padding_rows(subject.model)
    (before,), (after,) = _with_other_numbers(subject, tensors, OTHER, kept_still)
    return _differ(before, after)


def moves_beside(subject: Subject, tensor: Tensor) -> bool:
    """Whether other numbers in it move what the model returns beside the logits, as the weights of a second head do."""
    before, after = _with_other_numbers(subject, [tensor], OTHER, {}, _beside)
    return any(_differ(then, now) for then, now in zip(before, after, strict=True))


def _differ(before: Tensor, after: Tensor) -> bool:
    return float((after - before).abs().max()) > 1e-5 * float(before.abs().max())


def is_threshold(subject: Subject, tensor: Tensor) -> bool:
    """Whether numbers a little different move no logit to the last bit, although others do: they are compared with.

    The balance of a router is such: experts are chosen by it, and nothing is multiplied by it. Its derivative is zero.
    """
    (before,), (after,) = _with_other_numbers(subject, [tensor], NUDGE, {})
    return torch.equal(before, after)


def padding_rows(model: nn.Module) -> dict[int, int]:
    """The row of each table of embeddings that is declared to be padding's, by the table's id."""
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    return {id(table.weight): table.padding_idx for table in tables if table.padding_idx is not None}


def _logits(subject: Subject, inputs: Inputs) -> list[Tensor]:
    return [subject.convention.logits(subject.model, inputs)]


def _beside(subject: Subject, inputs: Inputs) -> list[Tensor]:
    """What stands beside the logits. What lies deeper or has more axes is a cache or a record of the layers."""
    returned = leaves(subject.convention.raw(subject.model, inputs))
    tensors = [leaf for path, leaf in returned if len(path) == 1 and path != subject.convention.output]
    return [leaf for leaf in tensors if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() <= 3]


def _with_other_numbers(
    subject: Subject,
    tensors: Iterable[Tensor],
    size: float,
    kept_still: Mapping[int, int],
    watched: Callable[[Subject, Inputs], list[Tensor]] = _logits,
) -> tuple[list[Tensor], list[Tensor]]:
    """What is watched before, and after noise of this size on the tensors, but for one row where it is kept still."""
    inputs = subject.inputs(3)
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors if tensor.is_floating_point()]
    with torch.no_grad(), without_dropout():
        before = watched(subject, inputs)
        try:
            for salt, (tensor, _) in enumerate(kept):
                noise = torch.randn(tensor.shape, generator=subject.generator(9 + 100 * salt)).to(tensor)
                if id(tensor) in kept_still:
                    noise[kept_still[id(tensor)]] = 0
                tensor.add_(size * noise)
            return before, watched(subject, inputs)
        finally:
            for tensor, values in kept:
                tensor.copy_(values)


def idle_table(subject: Subject, named: Sequence[tuple[str, Tensor]]) -> str | None:
    """The first of these tensors that moves no logit."""
    return next((name for name, tensor in named if tensor.is_floating_point() and not moves(subject, [tensor])), None)
