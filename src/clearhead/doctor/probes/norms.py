"""Which modules are normalizations."""

import re

from torch import nn


def is_norm(module: nn.Module | None) -> bool:
    """Whether a module is a normalization by its class or the name of its class, and not a layer that holds one.

    A scale and a shift for several axes have one shape; whatever else holds a matrix is a layer.
    """
    if isinstance(module, nn.LayerNorm):
        return True
    if module is None or not re.search(r"norm|(^|_)ln($|_|\d)", type(module).__name__, re.I):
        return False
    shapes = {parameter.shape for parameter in module.parameters()}
    is_scale = len(shapes) == 1 and bool(re.search(r"norm\d?$", type(module).__name__, re.I))
    return is_scale or not any(min(shape) > 1 for shape in shapes if len(shape) > 1)


def is_leaf_norm(module: nn.Module | None) -> bool:
    """Whether it is a normalization that computes by itself, and does not only hold another."""
    return module is not None and is_norm(module) and not [*module.children()]
