"""The families: every `Family` in a module of this folder. Nothing else in the library knows a foreign name."""

from importlib import import_module
from pkgutil import iter_modules

from clearhead.config import ModelConfig
from clearhead.interop.hf.family import Family

# Modules by name, and the families of each as they stand there; where a config fits in several, the first is taken.
FAMILIES: dict[str, Family] = {
    family.name: family
    for module in sorted(module.name for module in iter_modules(__path__, f"{__name__}."))
    for family in vars(import_module(module)).values()
    if isinstance(family, Family)
}


def family_of(config: ModelConfig) -> Family | None:
    """The first family that the config fits in, or None."""
    return next((family for family in FAMILIES.values() if not family.obstacles(config)), None)


def obstacle(config: ModelConfig) -> str | None:
    """Which options keep the config from the family that it is nearest to, in words; None if it fits in one."""
    everyone = FAMILIES.values()
    alike = [family for family in everyone if family.needs["architecture"] == config.architecture]
    nearest = min((family.obstacles(config) for family in alike or everyone), key=len)
    return " and ".join(nearest) or None
