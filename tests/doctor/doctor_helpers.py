"""Small models as a stranger writes them, and the same with one thing broken."""

import importlib.util
import itertools
import sys
from pathlib import Path

from torch import nn

HOSTS = Path(__file__).with_name("hosts")
NAMES = sorted(path.stem for path in HOSTS.glob("*.py"))
NUMBERS = itertools.count()


def source_of(host: str, *changes: tuple[str, str]) -> str:
    """The host's code with every change made, each at exactly one place."""
    code = (HOSTS / f"{host}.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert code.count(old) == 1, f"{old!r} occurs {code.count(old)} times in {host}"
        code = code.replace(old, new)
    return code


def write(folder: Path, host: str, *changes: tuple[str, str]) -> Path:
    """The changed host as a file of its own, so that its lines can be told."""
    path = folder / f"{host}_{next(NUMBERS)}.py"
    path.write_text(source_of(host, *changes), encoding="utf-8")
    return path


def made(path: Path) -> nn.Module:
    """What its `build` makes."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    model = module.build()
    assert isinstance(model, nn.Module)
    return model
