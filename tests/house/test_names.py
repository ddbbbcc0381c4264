"""A value is called what it is: no variable, parameter or attribute has a name that fits every value."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import clearhead

SOURCE = Path(clearhead.__file__).parent
ROOT = SOURCE.parents[1]
SAY_NOTHING = {"found", "told", "seen", "asked", "said", "given", "wanted"}
SAY_NOTHING |= {"made", "one", "each", "way", "place", "words", "theirs"}
ALLOWED = {  # grammars and their tests, whose values are words
    "src/clearhead/data/pairs/": {"words"},
    "src/clearhead/data/stories/": {"words"},
    "tests/data/german_": {"words"},
    "tests/data/pairs_": {"words"},
    "tests/data/test_pairs_": {"words"},
}
NOT_YET = ("tests/doctor",)  # folders whose values are still to be named
STRANGERS = (
    "benchmarks/doctor/hosts/",
    "benchmarks/doctor/real/",
    "tests/doctor/hosts/",
    "tests/doctor/training/hosts/",
)


def names_bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the name of everything that code calls by a name of its own, but for functions and classes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.MatchMapping(rest=str(name)) | ast.alias(asname=str(name)):
                yield node.lineno, name


def refused(path: str) -> set[str]:
    """The names that a file, such as src/clearhead/data/masking.py, must not have."""
    return SAY_NOTHING.difference(*(names for start, names in ALLOWED.items() if path.startswith(start)))


FILES = [
    path.relative_to(ROOT).as_posix()
    for folder in ("src", "tests", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.relative_to(ROOT).as_posix().startswith(STRANGERS)
]
NAMED = [path for path in FILES if not path.startswith(tuple(f"{folder}/" for folder in NOT_YET))]


def test_values_are_called_what_they_are() -> None:
    bound = ((path, names_bound(ast.parse((ROOT / path).read_text(encoding="utf-8")))) for path in NAMED)
    faults = [f"{path}:{line} {name}" for path, names in bound for line, name in names if name in refused(path)]
    assert NAMED
    assert not faults, "\n".join(["name these after what they hold:", *faults])


def test_a_folder_whose_values_are_named_is_no_longer_excused() -> None:
    for folder in NOT_YET:
        trees = [
            ast.parse((ROOT / path).read_text(encoding="utf-8")) for path in FILES if path.startswith(f"{folder}/")
        ]
        assert SAY_NOTHING & {name for tree in trees for _, name in names_bound(tree)}, folder


@pytest.mark.parametrize(
    "code",
    [
        "found = 1",
        "found: int",
        "found += 1",
        "first, (found, *rest) = pair",
        "first, *found = pair",
        "self.found = 1",
        "(found := 1)",
        "[found for found in names]",
        "for found in names: pass",
        "with opened() as found: pass",
        "lambda found: 1",
        "def read(found): pass",
        "def read(*found): pass",
        "def read(*, found=1): pass",
        "def read(**found): pass",
        "class Batch:\n    found: int",
        "try: pass\nexcept ValueError as found: pass",
        "import numpy as found",
        "from numpy import array as found",
        "match x:\n    case found: pass",
        "match x:\n    case [*found]: pass",
        "match x:\n    case {**found}: pass",
    ],
)
def test_every_way_to_name_a_value_is_noticed(code: str) -> None:
    assert "found" in {name for _, name in names_bound(ast.parse(code))}


def test_a_name_that_is_only_read_is_anothers() -> None:
    assert not list(names_bound(ast.parse("print(module.found, found, read(found=1))")))
