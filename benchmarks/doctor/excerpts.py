"""The definitions of a script or a notebook that would train, download or ask if it were imported.

A person who asks the doctor about such a file moves what runs below a main(); this does it for them.
"""

import ast
import importlib.util
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

DEFINED = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
PLAIN = (ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Dict, ast.Attribute, ast.IfExp)


def definitions(
    path: Path, *, keep: frozenset[str] | set[str] = frozenset(), values: Mapping[str, Any] | None = None
) -> ModuleType:
    """A module of the imports, functions, classes and plain assignments of a file.

    Args:
        path: a script, or a notebook, whose code cells are read one after the other.
        keep: further names whose assignments, calls included, are run.
        values: assignments that are replaced, such as sizes.
    """
    values = values or {}
    body = [part for part in ast.parse(_source(path)).body if _is_kept(part, keep)]
    lines = [f"{name} = {value!r}" for name, value in values.items()]
    for part in body:
        if isinstance(part, DEFINED) or not _names(part) & set(values):
            lines.append(ast.unparse(part))
    folder = Path(tempfile.mkdtemp())
    file = folder / f"{path.stem.replace('-', '_').replace(' ', '_')}.py"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return _imported(file)


def _source(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix != ".ipynb":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return "\n".join(filter(_parses, map(_without_magic, ("".join(cell["source"]) for cell in cells))))


def _without_magic(cell: str) -> str:
    return "\n".join(line for line in cell.splitlines() if not line.lstrip().startswith(("%", "!", "?")))


def _parses(cell: str) -> bool:
    try:
        ast.parse(cell)
    except SyntaxError:
        return False
    return True


def _names(part: ast.stmt) -> set[str]:
    targets = part.targets if isinstance(part, ast.Assign) else [part.target] if isinstance(part, ast.AnnAssign) else []
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def _is_kept(part: ast.stmt, keep: frozenset[str] | set[str]) -> bool:
    if isinstance(part, DEFINED):
        return True
    if not isinstance(part, ast.Assign | ast.AnnAssign):
        return False
    targets = part.targets if isinstance(part, ast.Assign) else [part.target]
    if not all(isinstance(target, ast.Name | ast.Tuple) for target in targets):
        return False  # an entry of something that may not be kept
    if _names(part) & keep:
        return True
    return part.value is not None and isinstance(part.value, PLAIN) and not _calls(part.value)


def _calls(value: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) for node in ast.walk(value))


def _imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module
