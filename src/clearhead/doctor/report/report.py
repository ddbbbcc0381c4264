"""An examination with its text: as a person reads it, and as plain data. Imports no torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from clearhead.doctor.report.findings import Finding, Json
from clearhead.doctor.report.text import conclusion, lines
from clearhead.doctor.report.verdict import Checked, Examined
from clearhead.doctor.spec import Assumption
from clearhead.errors import DataError, FaultError


@dataclass(frozen=True, repr=False)
class Report(Examined):
    """An examination, its verdict, and how it is read."""

    @property
    def summary(self) -> str:
        """The verdict in one line, with what it rests on."""
        return conclusion(self)

    def raise_if_failed(self) -> None:
        """For tests of your own.

        Raises:
            FaultError: the first fault, in one sentence, and how many more there are.
            DataError: something that was asked for could not be examined, so that nothing is known of it.
        """
        failed = [finding for finding in self.findings if finding.status == "fail"]
        if failed:
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            raise FaultError(failed[0].sentence + more)
        if self.exit_code:
            raise DataError(self.summary)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Report: {self.summary}>"

    def text(self, *, verbose: bool = False) -> str:
        """As a person reads it: the verdict, then what is wrong or open; verbose also tells what was run and passed."""
        return "\n".join(text for text, _ in lines(self, verbose=verbose))

    def as_json(self) -> Json:
        """Plain data, as the schema in docs/doctor.md has it."""
        return {
            "target": self.target,
            "kind": self.kind,
            "verdict": self.verdict,
            "summary": self.summary,
            "only": list(self.only),
            "findings": [finding.as_json() for finding in self.findings],
            "checks": [asdict(check) for check in self.checks],
            "broken": list(self.broken),
            "assumptions": [asdict(assumption) for assumption in self.assumptions],
            "paths": list(self.paths),
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The reverse of `as_json`, after it went through text."""
        document = json.loads(json.dumps(document))

        def tuples(table: Json) -> Json:
            return {key: tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
                    for key, value in table.items()}  # fmt: skip

        return cls(
            target=document["target"],
            kind=document["kind"],
            findings=tuple(map(Finding.from_json, document["findings"])),
            checks=tuple(Checked(**tuples(check)) for check in document["checks"]),
            assumptions=tuple(Assumption(**tuples(assumption)) for assumption in document["assumptions"]),
            paths=tuple(document["paths"]),
            seconds=document["seconds"],
            only=tuple(document["only"]),
        )
