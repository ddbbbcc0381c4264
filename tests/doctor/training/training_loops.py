"""Small training scripts as a stranger writes them, and the same with one thing broken."""

import importlib.util
import itertools
import sys
from pathlib import Path
from typing import Any

from clearhead.doctor import Report, watch

HOSTS = Path(__file__).with_name("hosts")
NAMES = sorted(path.stem for path in HOSTS.glob("*.py") if path.stem not in ("tiny_models", "styles"))
NUMBERS = itertools.count()


def source_of(host: str, *changes: tuple[str, str]) -> str:
    """The script's code with every change made, each at exactly one place."""
    code = (HOSTS / f"{host}.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert code.count(old) == 1, f"{old!r} occurs {code.count(old)} times in {host}"
        code = code.replace(old, new)
    return code


def written(folder: Path, host: str, *changes: tuple[str, str]) -> Path:
    """The changed script as a file of its own, beside the models that it imports."""
    (folder / "tiny_models.py").write_text((HOSTS / "tiny_models.py").read_text(encoding="utf-8"), encoding="utf-8")
    path = folder / f"{host}_{next(NUMBERS)}.py"
    path.write_text(source_of(host, *changes), encoding="utf-8")
    return path


def loaded(path: Path) -> Any:
    """The script as a module: what it defines, without running it."""
    if str(HOSTS) not in sys.path:
        sys.path.insert(0, str(HOSTS))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def watched(path: Path) -> Report:
    """What the doctor says of the script's training, with nothing named to it."""
    module = loaded(path)
    with watch() as seen:
        module.train()
    return seen.report()
