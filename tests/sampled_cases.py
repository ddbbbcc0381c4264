"""Of a test with many cases the suite runs some and the campaign the others: which ones, says a hash of their names.

Two laws over the same models draw different ones, so that between them they see all. A case that fails by name
(`pytest 'file.py::test[case]'`) runs; `pytest -m ''` runs all.
"""

import hashlib
from collections import Counter, defaultdict

import pytest

ROOMS = ("tests/laws/", "tests/parity/")  # of whose tests all are sampled; elsewhere those that are marked `sampled`
FEW = 4  # cases, of which all are run; of more, a tenth is added
SHARED = 2  # cases with a value in common: one of them is run


def sampled(test: str, cases: list[str], few: int = FEW) -> set[str]:
    """Those of the cases of a test that the suite runs.

    Args:
        test: its name, which has a part in what is chosen.
        cases: their ids, with `-` between the values of the parameters.
        few: as many are run at least; less than ten where a case takes seconds.

    Returns:
        the few and a tenth of the rest, or more, where these lack a value that several cases have.
    """
    counts = Counter(value for case in cases for value in set(case.split("-")))
    missing = {value for value, count in counts.items() if count >= SHARED}
    ordered = sorted(cases, key=lambda case: hashlib.sha256(f"{test}[{case}]".encode(errors="replace")).digest())
    chosen = set(ordered[: few + max(0, len(cases) - few) // 10])
    missing.difference_update(*(case.split("-") for case in chosen))
    for case in ordered:
        if not missing.isdisjoint(case.split("-")):
            chosen.add(case)
            missing.difference_update(case.split("-"))
    return chosen


def leave_to_the_campaign(items: list[pytest.Item]) -> None:
    """Marks the cases that the suite does not run."""
    tests = defaultdict[tuple[str, int], dict[str, pytest.Item]](dict)
    for item in items:
        call, mark = getattr(item, "callspec", None), item.get_closest_marker("sampled")
        is_sampled = item.nodeid.startswith(ROOMS) or mark is not None
        if call is not None and is_sampled and not item.get_closest_marker("campaign"):
            few = mark.args[0] if mark is not None and mark.args else FEW
            tests[item.nodeid.partition("[")[0], few][call.id] = item
    for (test, few), cases in tests.items():
        for case in cases.keys() - sampled(test, list(cases), few):
            cases[case].add_marker(pytest.mark.campaign)
