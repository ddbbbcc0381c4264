"""One module called again on what it read in a pass, with one position changed."""

import torch
from torch import Tensor

from clearhead.doctor.probes.tracing import ModuleCall, without_dropout


def replayed(call: ModuleCall, *inputs: Tensor) -> list[Tensor]:
    """What the called module makes of each of these tensors alone; empty if that is no tensor. On the CPU."""
    assert call.module is not None
    device = next((p.device for p in call.module.parameters()), inputs[0].device)
    with torch.no_grad(), without_dropout():
        outputs = [call.module(tensor.to(device, copy=True)) for tensor in inputs]
    outputs = [output[0] if isinstance(output, tuple) else output for output in outputs]
    return [output.cpu() for output in outputs] if all(isinstance(output, Tensor) for output in outputs) else []


def reach_of(call: ModuleCall, axis: int, index: int, noise: Tensor) -> float | None:
    """How far the module moves all other positions if one position of its input changes, of its largest number.

    Args:
        axis: of the positions.
        index: the position to change.
        noise: what is added there.

    Returns:
        None if its output is not laid out like its input.
    """
    other = call.inputs[0].clone()
    other.select(axis, index).add_(noise)
    outputs = replayed(call, call.inputs[0], other)
    if not outputs or outputs[0].dim() != other.dim() or outputs[0].shape[axis] != other.shape[axis]:
        return None
    change = (outputs[1] - outputs[0]).abs()
    change.select(axis, index).zero_()
    return float(change.max()) / (float(outputs[0].abs().max()) or 1.0)
