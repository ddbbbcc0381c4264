"""What `pytest --doctor` collects and runs. Each model is examined once, in a separate process, at its first test."""

import tomllib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from pydantic import Field

from clearhead.doctor.catalogue.faults import refuse_unknown
from clearhead.doctor.isolated import Request, examine_isolated
from clearhead.doctor.report.findings import text_of
from clearhead.doctor.report.report import Report
from clearhead.doctor.report.verdict import Checked
from clearhead.errors import ClearheadError, UsageError
from clearhead.options import Options

TABLE = "[tool.clearhead.doctor]"
EXAMPLE = 'models = ["mypackage.model:build", {target = "mymodel.py:build", kind = "causal"}]'


class TableEntry(Options):
    """One model of the table, in the words of the command."""

    target: str
    kind: str | None = None
    level: str = "quick"
    only: tuple[str, ...] = ()
    allow: dict[str, str] = Field(default_factory=dict)
    set: dict[str, object] = Field(default_factory=dict)
    seed: int = 0
    batch: str | None = None
    device: str = "cpu"
    timeout: float = 300.0  # seconds

    @property
    def request(self) -> Request:
        """What it requests."""
        values = self.model_dump(exclude={"kind", "set", "timeout"})
        texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in self.set.items()}
        return Request(**values, kind=None if self.kind == "auto" else self.kind, settings=texts)


class DoctorWarning(UserWarning):
    """A finding that is a matter of taste, or of a threshold."""


class DoctorFailure(Exception):  # noqa: N818 - pytest shows it as a failed test
    """A fault, in the words of the report."""


class Doctor:
    """The plugin that --doctor loads."""

    def __init__(self, file: Path, entries: list[tuple[TableEntry, int]]) -> None:
        self.file, self.entries = file, entries

    @classmethod
    def of(cls, config: pytest.Config) -> Self:
        """With the nearest pyproject.toml, from pytest's root directory upward.

        Raises:
            pytest.UsageError: one sentence on what is wrong with it.
        """
        folders = (config.rootpath, *config.rootpath.parents)
        file = next((path for folder in folders if (path := folder / "pyproject.toml").is_file()), None)
        if file is None:
            raise pytest.UsageError(f"--doctor finds no pyproject.toml; add one with {TABLE} {EXAMPLE}")
        return cls(file, list(entries_of(file)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Put a test for each check of each model after all other tests, before -k and -m select."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries that are loaded now
            from clearhead.doctor.examination import chosen
        for entry, line in self.entries:
            model = Model(entry, line)
            for check in chosen(entry.only):
                nodeid = f"doctor[{entry.target}]::{check.name}"
                item = CheckItem.from_parent(session, name=check.name, path=self.file, nodeid=nodeid)
                item.model = model
                items.append(item)


@dataclass
class Model:
    """One model, and its report after the examination."""

    entry: TableEntry
    line: int
    report: Report | None = None
    problem: str | None = None

    def examined(self, folder: Path, search: Sequence[str]) -> Report:
        """The report; the first call examines.

        Raises:
            DoctorFailure: the model cannot be examined. One test fails so; the others are skipped.
        """
        if self.problem is not None:
            pytest.skip(f"not examined: {self.problem}")
        if self.report is None:
            request, timeout = self.entry.request, self.entry.timeout
            try:
                document = examine_isolated(request, timeout=timeout, folder=folder, search=search)
            except ClearheadError as error:
                self.problem = str(error)
                raise DoctorFailure(self.problem) from None
            self.report = Report.from_json(document)
        return self.report


class CheckItem(pytest.Item):
    """One check of one model."""

    model: Model

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_marker("doctor")

    def runtest(self) -> None:
        """Fail, warn, skip or pass as the check did."""
        report = self.model.examined(self.path.parent, [str(path) for path in self.config.getini("pythonpath")])
        check: Checked = next(check for check in report.checks if check.name == self.name)
        text = text_of(report.of_check(self.name)) or check.note
        if check.status == "fail":
            raise DoctorFailure(text)
        if check in report.unjudged:
            raise DoctorFailure(f"it could not be judged: {check.note}")
        if check.status == "warn":
            self.warn(DoctorWarning(f"{self.model.entry.target}, {self.name}\n{text}"))
        elif check.status != "pass":
            pytest.skip(f"{check.status}: {check.note}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The finding itself, and no traceback through the doctor."""
        if isinstance(excinfo.value, DoctorFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The line of the table, and the name of the test."""
        return self.path, self.model.line, f"{self.model.entry.target}: {self.name}"


def entries_of(file: Path) -> Iterator[tuple[TableEntry, int]]:
    """The entries of a pyproject.toml, and the number of the line of each.

    Raises:
        pytest.UsageError: one sentence on what is wrong with it.
    """
    try:
        text = file.read_text(encoding="utf-8")
        models = tomllib.loads(text).get("tool", {}).get("clearhead", {}).get("doctor", {}).get("models")
    except (OSError, ValueError, AttributeError) as error:
        raise pytest.UsageError(f"--doctor cannot read {TABLE} of {file}: {error}") from None
    if not isinstance(models, list) or not models:
        raise pytest.UsageError(f"--doctor finds no models in {file}; add {TABLE} {EXAMPLE}")
    for model in models:
        table = {"target": model} if isinstance(model, str) else model
        if not isinstance(table, dict) or not isinstance(target := table.get("target"), str):
            reason = f"a model is a target, or a table that has one, and not {model!r}"
            raise pytest.UsageError(f"{TABLE} of {file}: {reason}")
        try:
            entry = TableEntry.read(table)
            refuse_unknown(entry.request.kind, entry.level, (*entry.only, *entry.allow))
        except UsageError as error:
            raise pytest.UsageError(f"{TABLE} of {file}: {target}: {error}") from None
        yield entry, next((number for number, row in enumerate(text.splitlines()) if target in row), 0)
