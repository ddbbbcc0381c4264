"""The recorded batch, run through the model again; afterwards the model is bit for bit what it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from clearhead.doctor.calling.outputs import follow, tensors
from clearhead.doctor.checks.parts.effects import OTHER
from clearhead.doctor.probes.tensors import relative_change
from clearhead.doctor.state_guard import kept, restored
from clearhead.doctor.training.events import Embedded, Forward
from clearhead.doctor.training.recording import Recording

CLOSE = 1e-5  # of the largest output: a smaller difference is rounding


@contextmanager
def trying(recording: Recording, model: nn.Module) -> Iterator[None]:
    """Nothing that happens here is recorded or stays."""
    with recording.event_log.pause(), restored(model), torch.no_grad():
        yield


def run(forward: Forward, *, training: bool, seed: int = 0) -> list[Tensor]:
    """The outputs that a loss read, computed again from the same batch; call it within `trying`."""
    forward.module.train(training)
    torch.manual_seed(seed)
    arguments = (forward.args, dict(forward.kwargs))
    args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), arguments)
    output = forward.module(*args, **kwargs)
    outputs = [follow(output, record.path) for record in forward.outputs if record.is_used] or tensors(output)
    return [tensor for tensor in outputs if isinstance(tensor, Tensor) and tensor.is_floating_point()]


def difference(first: list[Tensor], second: list[Tensor]) -> float:
    """The largest, relative to the largest number; infinite if they cannot be compared."""
    pairs = [(left.double(), right.double()) for left, right in zip(first, second, strict=False) if left.numel()]
    if any(left.shape != right.shape for left, right in pairs):
        return float("inf")
    return max((relative_change(left, right) for left, right in pairs), default=0.0)


@contextmanager
def other_tokens(embedded: Embedded, ids: Tensor) -> Iterator[None]:
    """Whatever embeds exactly those tokens embeds these instead."""

    def swap(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        same = args and isinstance(args[0], Tensor) and torch.equal(args[0], embedded.ids)
        return (ids.to(args[0]), *args[1:]) if same else None

    with embedded.module.register_forward_pre_hook(swap):
        yield


def effect(forward: Forward, parameter: nn.Parameter, *, training: bool, size: float = OTHER) -> float:
    """How far noise on a parameter moves what the loss reads, of the largest number; call it within `trying`."""
    before = run(forward, training=training)
    noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    with kept([parameter]):
        parameter.add_(size * noise.to(parameter))
        return difference(before, run(forward, training=training))


def has_gradient(forward: Forward, parameter: nn.Parameter, *, training: bool) -> bool:
    """Whether a gradient of what the loss reads reaches a parameter; call it within `trying`."""
    with torch.enable_grad():
        outputs = [tensor for tensor in run(forward, training=training) if tensor.requires_grad]
        if not outputs:
            return False
        total = torch.stack([tensor.double().sum() for tensor in outputs]).sum()
        return torch.autograd.grad(total, parameter, allow_unused=True)[0] is not None
