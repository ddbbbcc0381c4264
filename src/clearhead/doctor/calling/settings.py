"""What a model's `config` says, be it an object or a dict."""

from collections.abc import Mapping
from typing import Any

from torch import nn

CONFIGS = ("config", "cfg", "args", "params", "hparams", "opt")  # what people call it


def settings_of(module: nn.Module) -> dict[str, Any]:
    """What the module's `config` holds, by name; empty without one."""
    config = next((config for name in CONFIGS if (config := getattr(module, name, None)) is not None), None)
    if isinstance(config, Mapping):
        return dict(config)
    return dict(vars(config)) if hasattr(config, "__dict__") else {}


def setting(module: nn.Module, name: str, default: object = None) -> object:
    """What the module's `config` has under a name, as a key or an attribute."""
    config = getattr(module, "config", None)
    return config.get(name, default) if isinstance(config, Mapping) else getattr(config, name, default)
