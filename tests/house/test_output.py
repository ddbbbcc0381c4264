"""Everything that the command prints goes through one file, which lets nothing through that a terminal would obey."""

import ast
from pathlib import Path

import clearhead

ROOM = Path(clearhead.__file__).parent / "cli"
SINKS = {"output.py", "terminal.py", "environment.py"}  # the way out; rich behind it; the flush at the end
FILES = sorted(path for path in ROOM.rglob("*.py") if path.name not in SINKS)
FORBIDDEN = {"print", "sys.stdout", "sys.stderr", "rich.print", "sys.__stdout__", "sys.__stderr__"}


def test_nobody_prints_past_it() -> None:
    past = {}
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)}
        past[path.name] = names & FORBIDDEN | {name for name in names if name.split(".")[0] == "rich"}
    past = {file: names for file, names in past.items() if names}
    assert not past, "print by cli/output.py: a Console, a notice or standard_output().text()"
