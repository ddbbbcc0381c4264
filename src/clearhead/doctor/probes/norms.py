"""Which modules are normalizations."""

import re

from torch import nn


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalization, by its class or its own name for it."""
    called_so = bool(re.search(r"norm|(^|_)ln($|_|\d)", type(module).__name__, re.I)) or isinstance(
        module, nn.LayerNorm
    )
    return called_so and not any(p.dim() > 1 and min(p.shape) > 1 for p in module.parameters())  # nor a layer with one


def is_leaf_norm(module: nn.Module | None) -> bool:
    """Whether it is one that computes by itself, and does not only hold another."""
    return module is not None and is_norm(module) and not any(True for _ in module.children())
