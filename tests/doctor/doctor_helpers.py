"""Small models as a stranger writes them, and the same with one thing broken."""

from functools import cache
from pathlib import Path

import changed_hosts
from torch import nn

from clearhead.doctor import Report, check

HOSTS = Path(__file__).with_name("hosts")
NAMES = sorted(path.stem for path in HOSTS.glob("*.py"))


def source_of(host: str, *changes: tuple[str, str]) -> str:
    """The host's code with every change made, each at exactly one place."""
    return changed_hosts.source_of(HOSTS / f"{host}.py", *changes)


def write(folder: Path, host: str, *changes: tuple[str, str]) -> Path:
    """The changed host as a file of its own, so that its lines can be told."""
    return changed_hosts.write_changed(folder, HOSTS / f"{host}.py", *changes)


def made(path: Path) -> nn.Module:
    """What its `build` makes."""
    model = changed_hosts.loaded(path).build()
    assert isinstance(model, nn.Module)
    return model


@cache
def as_it_came(host: str) -> Report:
    """Of a healthy host; it is made once for all tests that read it."""
    return check(made(HOSTS / f"{host}.py"), level="standard")
