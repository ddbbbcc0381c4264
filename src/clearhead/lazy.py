"""What is loaded when it is first touched: exports of a package, and what a higher floor lends to a lower one."""

TYPE_CHECKING = False  # `typing` takes a while to load, and `import clearhead` must be quick
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


def attach(
    package: str, exports: "Mapping[str, Sequence[str]]", submodules: "Sequence[str]" = ()
) -> "tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]":
    """The `__getattr__`, `__dir__` and `__all__` of a package (PEP 562).

    A test holds `exports` equal to what the package imports under `TYPE_CHECKING`, which is what editors see.

    Args:
        package: its `__name__`.
        exports: the public names of each of its modules.
        submodules: modules that are public themselves.
    """
    module_of = {name: f"{package}.{module}" for module, names in exports.items() for name in names}

    def load(name: str) -> "Any":
        import sys
        from importlib import import_module

        if name in module_of:
            return getattr(import_module(module_of[name]), name)
        if name in submodules:
            return import_module(f"{package}.{name}")
        # Python adds "Did you mean" from what is told about the module
        raise AttributeError(f"module '{package}' has no attribute '{name}'", name=name, obj=sys.modules[package])

    return load, lambda: sorted([*module_of, *submodules]), sorted(module_of)


_PROVIDERS: "dict[str, str]" = {}  # name -> the module that has it


def provide(**modules: str) -> None:
    """Let lower floors call these names of these modules, which they may not import. The package says it, once."""
    _PROVIDERS.update(modules)


def provided(name: str) -> "Any":
    """What a higher floor lends under this name."""
    from importlib import import_module

    return getattr(import_module(_PROVIDERS[name]), name)
