"""Which modules are normalizations."""

import re

from torch import nn


def is_norm(module: nn.Module | None) -> bool:
    """Whether a module is a normalization by its class or the name of its class, and not a layer that holds one."""
    is_named = re.search(r"norm|(^|_)ln($|_|\d)", type(module).__name__, re.I) or isinstance(module, nn.LayerNorm)
    return (
        module is not None and bool(is_named) and not any(min(p.shape) > 1 for p in module.parameters() if p.dim() > 1)
    )


def is_leaf_norm(module: nn.Module | None) -> bool:
    """Whether it is a normalization that computes by itself, and does not only hold another."""
    return module is not None and is_norm(module) and not [*module.children()]
