"""A training script of a stranger's, run as it is, watched, and stopped after two steps."""

import os
import runpy
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clearhead.doctor.problems import attempt, sentence_of
from clearhead.doctor.report.records import Json
from clearhead.doctor.report.report import Report
from clearhead.doctor.training.events import Scaled
from clearhead.doctor.training.watching import Watch
from clearhead.errors import DataError

STEPS = 2
AT_MOST = 6  # steps by any optimizer, where the first one steps more rarely than others; also attempts by a scaler
THROWN_AWAY = 3  # times that gradients were made and cleared, after which no step is waited for
LOOKED_AWAY = 20  # forwards without gradient after the last step that is needed: an evaluation, which may be long


def examine_script(
    path: str, arguments: Sequence[str], allow: Mapping[str, str], finish: Callable[[Json], None]
) -> Json:
    """Run a script until its third step would begin, or to its end.

    Args:
        path: of the script; it runs as `python path words...` would run it.
        allow: id of a check -> why its finding is no fault here.
        finish: is given the report and ends the process, so that no other line of the script runs.

    Raises:
        DataError: there is no such script, it raised, or it ended and nothing had learned.
    """
    if not Path(path).is_file():
        raise DataError(f"there is no file {path}; give the script that trains")
    process = os.getpid()
    away = 0

    def before(watched: Watch, with_gradient: bool) -> None:
        nonlocal away
        if os.getpid() == process and _is_enough(watched):
            away += not with_gradient
            if with_gradient or away > LOOKED_AWAY:
                finish(_answered(watched, path, arguments))

    with Watch(None, [], [], allow, before) as watched:
        error = _run(path, arguments)
    report = watched.report(path)
    if error is not None and report.verdict != "faulty":
        raise DataError(f"{path} {error}; mend that first") from None
    if report.verdict == "unknown":
        raise DataError(
            f"{path} ended after {len(watched.event_log.steps)} steps of an optimizer and "
            f"{watched.event_log.gradients.backwards} backwards, too few to see how it "
            "trains; give it data and arguments for two steps, after '--'"
        )
    return _told(watched, path, arguments)


def _is_enough(watched: Watch) -> bool:
    steps = watched.event_log.steps
    attempts = sum(isinstance(event, Scaled) and event.method == "step" for event in watched.event_log.timeline)
    if not steps:
        thrown = max((account.thrown_away for account in watched.event_log.gradients.accounts.values()), default=0)
        return thrown >= THROWN_AWAY or attempts >= AT_MOST
    first = sum(step.optimizer == steps[0].optimizer for step in steps)
    return first >= STEPS or len(steps) >= AT_MOST


def _answered(watched: Watch, path: str, arguments: Sequence[str]) -> Json:
    """The report, or why there is none: nothing may be raised into the script."""
    with attempt() as attempted:
        return _told(watched, path, arguments)
    return {"error": f"{path} could not be judged ({attempted.sentence()})", "exit_code": DataError.exit_code}


def _told(watched: Watch, path: str, arguments: Sequence[str]) -> Json:
    report: Report = watched.report(path)
    again = f"clearhead doctor train {shlex.quote(path)}" + (f" -- {shlex.join(arguments)}" if arguments else "")
    findings = tuple(replace(finding, repro=again) for finding in report.findings)
    return replace(report, findings=findings).as_json()


def _run(path: str, arguments: Sequence[str]) -> str | None:
    """The script as Python would run it; returns what went wrong."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as stopped:
        return None if stopped.code in (None, 0) else f"ended itself ({str(stopped.code)[:200]})"
    except Exception as error:
        return f"raised {sentence_of(error, 200)}{_line_of(error, path)}"
    return None


def _line_of(error: BaseException, path: str) -> str:
    """The last line of the script itself on the way to the error."""
    at: Any = error.__traceback__
    line = None
    while at is not None:
        if at.tb_frame.f_code.co_filename == path:
            line = at.tb_lineno
        at = at.tb_next
    return f", at {path}:{line}" if line is not None else ""
