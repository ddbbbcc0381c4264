"""What a tensor held at a moment: all of a small one, evenly spread numbers of a large one."""

import torch
from torch import Tensor

SAMPLE = 2**16  # numbers that stand for a tensor


def sample(tensor: Tensor) -> Tensor:
    """A copy of up to 65,536 numbers of it, (N,); of a sparse one, of those that it holds."""
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    flat = tensor.reshape(-1)
    return flat[:: max(1, -(-flat.numel() // SAMPLE))].clone()


def is_zero(tensor: Tensor | None) -> bool:
    """Whether there is no gradient, or nothing but zeros."""
    if tensor is None:
        return True
    held = tensor.coalesce().values() if tensor.is_sparse else tensor
    return not bool(held.detach().any())


def norm(reading: Tensor) -> float:
    """The Euclidean length of a reading."""
    return float(torch.linalg.vector_norm(reading.double()))
