"""Pytest imports a test file by its bare name, so no two may have the same."""

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_two_test_files_have_the_same_name() -> None:
    files = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, number in files.items() if number > 1] == []
