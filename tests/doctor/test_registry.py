"""A check is written down once: where it is."""

from pathlib import Path

import pytest
from check_table import PAGE, TABLE, with_tables

from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.checks import CHECKS
from clearhead.doctor.checks.base import Registry, load_all
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.checks import TRAINING_CHECKS


def test_the_page_has_the_tables_of_checks() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(TABLE.findall(page)) == 2
    assert page == with_tables(page), "python tests/doctor/check_table.py --keep"


def test_every_check_says_what_holds() -> None:
    for checks in (CHECKS, TRAINING_CHECKS):
        sentences = [check.holds for check in checks]
        assert len({*sentences}) == len(sentences)
        assert all(sentence.strip() and not sentence.endswith(".") for sentence in sentences)
        assert len({check.order for check in checks}) == len(checks)
        assert all({*check.covers} <= {*CATALOGUE} for check in checks)


def test_a_file_is_all_that_a_new_check_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register = Registry[int]()
    package = tmp_path / "parity_of_numbers"
    (package / "odd").mkdir(parents=True)
    for folder in (package, package / "odd"):
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Registry, "of_this_test", register, raising=False)
    for order, name, needs in ((20, "late", ("early",)), (10, "early", ())):
        (package / "odd" / f"{name}.py").write_text(
            "from clearhead.doctor.checks.base import Registry\n"
            f"@Registry.of_this_test('M01', '{name}', order={order}, covers=('M01',), holds='it is', needs={needs})\n"
            "def run(number): return []\n",
            encoding="utf-8",
        )
    load_all("parity_of_numbers", [str(package)])
    found: list[Finding] = []
    assert [(check.name, check.needs, check.run(1)) for check in register.in_order()] == [
        ("early", (), found),
        ("late", ("early",), found),
    ]
