"""Packages that only some formats need."""

from importlib.util import find_spec

from clearhead.errors import UsageError


def require(extra: str, *packages: str) -> None:
    """Raise unless the packages are installed.

    Raises:
        UsageError: a package is missing; names all of them and the extra of ours that brings them.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UsageError(f"the format needs {' and '.join(missing)}; install with: pip install 'clearhead[{extra}]'")
