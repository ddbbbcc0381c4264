"""Code as a stranger writes it, in files beside the tests, and the same with something changed in it."""

import importlib.util
import itertools
import sys
from pathlib import Path
from typing import Any

NUMBERS = itertools.count()


def source_of(file: Path, *changes: tuple[str, str]) -> str:
    """The file's code with every change made, each at exactly one place."""
    code = file.read_text(encoding="utf-8")
    for old, new in changes:
        assert code.count(old) == 1, f"{old!r} occurs {code.count(old)} times in {file.stem}"
        code = code.replace(old, new)
    return code


def write_changed(folder: Path, file: Path, *changes: tuple[str, str]) -> Path:
    """The changed code as a file of its own, so that its lines can be told."""
    path = folder / f"{file.stem}_{next(NUMBERS)}.py"
    path.write_text(source_of(file, *changes), encoding="utf-8")
    return path


def loaded(path: Path) -> Any:
    """The file as a module: what it defines."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
