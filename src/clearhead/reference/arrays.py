"""What the twin is made of: float64 arrays, and weights by the names that the models give them."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Ids = NDArray[np.int64]  # token ids, and positions, which are -1 for padding
Allowed = NDArray[np.bool_]  # True means may attend
Shape = tuple[int, ...]
Weights = Mapping[str, Array]  # of a model or of a part of it: a matrix is (out, in)


def as_float64(weights: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """A model's `state_dict()`, or what `safetensors.numpy.load_file` read, for the twin."""
    return {name: np.asarray(numbers, dtype=np.float64) for name, numbers in weights.items()}


def subtree(weights: Weights, prefix: str) -> Weights:
    """The weights whose names begin with the prefix and a dot, by the rest of their names."""
    return {name.removeprefix(f"{prefix}."): array for name, array in weights.items() if name.startswith(f"{prefix}.")}


def linear(x: Array, weights: Weights, name: str) -> Array:
    """x W^T + b, or without b where there is none: (..., in) -> (..., out)."""
    y = x @ weights[f"{name}.weight"].T  # (..., in) (in, out) -> (..., out)
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


class Gradient(NamedTuple):
    """Of a part with one input: of that, and of the part's weights by their names."""

    x: Array
    weights: dict[str, Array]
