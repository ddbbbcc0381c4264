"""A training script, run unchanged and watched, and stopped after two steps."""

import os
import runpy
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clearhead.doctor.problems import attempt, sentence_of
from clearhead.doctor.report.records import Json
from clearhead.doctor.training.events import Scaled
from clearhead.doctor.training.watching import watch
from clearhead.errors import DataError
from clearhead.wording import counted

STEPS = 2
AT_MOST = 6  # steps by any optimizer, if the first one steps less often than others; also attempts by a scaler
THROWN_AWAY = 3  # times that gradients were computed and cleared, after which no step is waited for
LOOKED_AWAY = 20  # forwards without gradient after the last step that is needed: an evaluation, which may be long


def examine_script(
    path: str, arguments: Sequence[str], allow: Mapping[str, str], finish: Callable[[Json], None]
) -> Json:
    """Run a script until its third step would begin, or to its end.

    Args:
        path: of the script; it runs as `python path arguments...` would run it.
        allow: id of a check -> why its finding is not a fault here.
        finish: gets the report and ends the process, so that no other line of the script runs.

    Raises:
        DataError: there is no such script, it raised, or it ended before anything had learned.
    """
    if not Path(path).is_file():
        raise DataError(f"there is no file {path}; name the script that trains")
    process = os.getpid()
    away = 0

    def before(watched: watch, with_gradient: bool) -> None:
        nonlocal away
        if os.getpid() == process and _is_enough(watched):
            away += not with_gradient
            if with_gradient or away > LOOKED_AWAY:
                with attempt() as attempted:  # nothing may be raised into the script
                    document = _document(watched, path, arguments)
                if attempted.failed:
                    message = f"{path} could not be judged ({attempted.sentence()})"
                    document = {"error": message, "exit_code": DataError.exit_code}
                finish(document)

    with watch(allow=allow, before=before) as watched:
        error = _run(path, arguments)
    verdict = watched.report(path).verdict
    if error is not None and verdict != "faulty":
        raise DataError(f"{path} {error}; fix that first") from None
    if verdict == "unknown":
        steps, backwards = len(watched.event_log.steps), watched.event_log.gradients.backwards
        raise DataError(
            f"{path} ended after {counted(steps, 'step')} of an optimizer and {backwards} backwards, which is too few; "
            "give it data and arguments for two steps, after '--'"
        )
    return _document(watched, path, arguments)


def _is_enough(watched: watch) -> bool:
    log = watched.event_log
    if not log.steps:
        attempts = sum(isinstance(event, Scaled) and event.method == "step" for event in log.timeline)
        thrown_away = max((account.thrown_away for account in log.gradients.accounts.values()), default=0)
        return thrown_away >= THROWN_AWAY or attempts >= AT_MOST
    of_first = sum(step.optimizer == log.steps[0].optimizer for step in log.steps)
    return of_first >= STEPS or len(log.steps) >= AT_MOST


def _document(watched: watch, path: str, arguments: Sequence[str]) -> Json:
    report = watched.report(path)
    again = f"clearhead doctor train {shlex.quote(path)}" + (f" -- {shlex.join(arguments)}" if arguments else "")
    return replace(report, findings=tuple(replace(finding, repro=again) for finding in report.findings)).as_json()


def _run(path: str, arguments: Sequence[str]) -> str | None:
    """Run the script as Python would; returns what went wrong."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as stopped:
        return None if stopped.code in (None, 0) else f"ended itself ({str(stopped.code)[:200]})"
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        return f"raised {sentence_of(error, 200)}" + (f", at {path}:{lines[-1]}" if lines else "")
    return None
