"""A model, borrowed for an examination and given back bit for bit as it was."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def borrowed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Gradients, buffers, modes and random generators of `model` are afterwards what they were before."""
    modes = [(module, module.training) for module in model.modules()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    on_cpu = device.type == "cpu"
    with torch.random.fork_rng(devices=[] if on_cpu else [device], device_type=device.type), torch.enable_grad():
        try:
            for parameter, _ in gradients:
                parameter.grad = None
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            for module, name, buffer, copy in buffers:
                module._buffers[name] = buffer
                with torch.no_grad():
                    buffer.copy_(copy)
            for module, training in modes:
                module.training = training


@contextmanager
def without_zeros(parameters: Iterable[nn.Parameter], generator: torch.Generator) -> Iterator[None]:
    """Parameters that are all zero hold small noise meanwhile: a zero hides whatever flows through it."""
    zeros = [parameter for parameter in parameters if not parameter.detach().any()]
    with ExitStack() as stack, torch.no_grad():
        for parameter in zeros:
            stack.callback(_fill_with_zeros, parameter, parameter.detach().clone())
            noise = torch.randn(parameter.shape, generator=generator) * 0.02
            parameter.copy_(noise)
        with torch.enable_grad():
            yield


def _fill_with_zeros(parameter: nn.Parameter, zeros: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(zeros)  # the very zeros: a zero has a sign
