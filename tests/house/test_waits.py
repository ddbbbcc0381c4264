"""A test that waits for a process or a thread says for how long: a suite fails, it never hangs."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("*.py"))
LIMITED = {"run", "call", "check_call", "check_output", "communicate", "wait", "join", "finish"}
ENDLESS = {"readline", "readlines"}  # of a pipe: use child_processes.Child.wait_for


def waits_without_limit(source: str) -> Iterator[str]:
    """Each wait of which nothing ensures that it ends."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = ast.unparse(node.func.value), node.func.attr
        has_limit = any(keyword.arg in ("timeout", None) for keyword in node.keywords)
        of_subprocess = owner == "subprocess" and name in LIMITED
        of_process = owner != "subprocess" and name in {"communicate", "wait", "join"} and not node.args
        on_a_pipe = owner.endswith((".stdout", ".stderr")) and name in {"read", *ENDLESS} and "sys." not in owner
        blocking = owner == "os" and name in {"waitpid", "wait3", "wait4"} and "WNOHANG" not in ast.unparse(node)
        if ((of_subprocess or of_process) and not has_limit) or on_a_pipe or blocking:
            yield f"line {node.lineno}: {ast.unparse(node)[:80]}"


def test_every_wait_has_a_limit() -> None:
    waits = [
        f"{path.relative_to(TESTS)}, {wait}"
        for path in FILES
        for wait in waits_without_limit(path.read_text(encoding="utf-8"))
    ]
    assert not waits, "give each a timeout, or use tests/child_processes.py:\n" + "\n".join(waits)


WITHOUT_LIMIT = [
    "subprocess.run(words)",
    "process.wait()",
    "process.communicate()",
    "thread.join()",
    "os.waitpid(child, 0)",
    "process.stdout.readline()",
    "training.stderr.read()",
]
WITH_LIMIT = [
    "subprocess.run(words, timeout=1)",
    "subprocess.run(words, **options)",
    "process.wait(timeout=1)",
    "thread.join(1)",
    "' '.join(words)",
    "os.waitpid(child, os.WNOHANG)",
]


@pytest.mark.parametrize("code", WITHOUT_LIMIT + WITH_LIMIT)
def test_it_is_known_which_waits_have_none(code: str) -> None:
    assert bool(list(waits_without_limit(code))) == (code in WITHOUT_LIMIT)
