"""The doctor's verb in this process, which has loaded torch already: what is said is the same."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from clearhead.doctor.__main__ import answer_to
from clearhead.doctor.isolated import Request, answered
from clearhead.doctor.report.records import Json


def _examine_here(request: Request, *, timeout: float) -> Json:
    message = json.loads(json.dumps(asdict(request) | {"timeout": timeout}))
    return answered(json.loads(json.dumps(answer_to(message))))


@contextmanager
def examined_here() -> Iterator[None]:
    """Meanwhile examinations are made in this process; modules of this folder are forgotten afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clearhead.workflows.examining.examine_isolated", _examine_here)
        patch.setattr(sys, "path", [*sys.path])  # targets add their folder
        yield
    for name, module in [*sys.modules.items()]:
        if Path(getattr(module, "__file__", None) or "").parent == Path.cwd():
            del sys.modules[name]
