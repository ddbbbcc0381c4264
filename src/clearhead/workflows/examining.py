"""Examine any model, or a loss, in a process of its own. Imports no torch: that process does."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.doctor.catalogue.curves import signs
from clearhead.doctor.catalogue.faults import refuse_unknown
from clearhead.doctor.catalogue.symptoms import Diagnosis, symptom
from clearhead.doctor.catalogue.symptoms import diagnose as diagnosed
from clearhead.doctor.isolated import Request as Request
from clearhead.doctor.isolated import examine_isolated
from clearhead.doctor.load.naming import Target, read
from clearhead.doctor.report.comparison import Comparison
from clearhead.doctor.report.records import Json
from clearhead.doctor.report.report import Report
from clearhead.errors import DataError, UsageError
from clearhead.suggestions import did_you_mean
from clearhead.workflows.runs.paths import find_folder, newest_folder, run_folders

if TYPE_CHECKING:
    from torch import nn

TIMEOUT = 300.0  # seconds
FOR_ARCHITECTURES = "--set is for hf:NAME only; a factory of yours chooses its own sizes"


def check_model(request: Request | str | None = None, *, timeout: float = TIMEOUT) -> Report:
    """Examine what a target means, be it code, an architecture, a checkpoint or a run.

    Args:
        request: what to examine, and how; or the target alone. Without one it is the newest run.
        timeout: in seconds, for everything.

    Raises:
        ClearheadError: one sentence on what is wrong with the words, the target or its code.
    """
    if not isinstance(request, Request):
        request = Request(request)
    refuse_unknown(request.kind, request.level, (*request.only, *request.allow))
    target = resolve(request.target)
    if request.settings and target.kind != "architecture":
        raise UsageError(FOR_ARCHITECTURES)
    request = replace(request, target=request.target or target.location, factory=_factory(target))
    return Report.from_json(examine_isolated(request, timeout=timeout))


def _factory(target: Target) -> tuple[str, str] | None:
    """What makes the model of a run, in the process that examines it."""
    return (f"{model_of_run.__module__}:{model_of_run.__name__}", target.location) if target.kind == "run" else None


def diagnose(name: str, request: Request, *, timeout: float = TIMEOUT) -> Diagnosis:
    """What is behind a symptom, and which of its causes are refuted; of a run, with what its losses say.

    The whole model is examined: no answer about a cause may contradict what another check would find.

    Args:
        name: of the symptom.
        request: as for `check_model`.

    Raises:
        ClearheadError: the symptom is unknown, or as `check_model`.
    """
    entry = symptom(name)
    target = resolve(request.target)
    report = check_model(request, timeout=timeout)
    return diagnosed(entry, report, _signs(Path(target.location)) if target.kind == "run" else ())


def _signs(folder: Path) -> tuple[str, ...]:
    from clearhead.workflows.runs.folder import RunFolder

    run = RunFolder(folder)
    return signs(run.records(), vocab_size=run.config.model.vocab_size)


def compare_models(
    a: str,
    b: str,
    *,
    kind: str | None = None,
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
    timeout: float = TIMEOUT,
) -> Comparison:
    """Give two models the same weights and the same ids, and find the first module that differs.

    Args:
        a, b: targets, as for `check_model`.
        settings: for those that are architectures of transformers.

    Raises:
        ClearheadError: one sentence on what is wrong with the words, a target or its code.
    """
    refuse_unknown(kind, "quick", ())
    first, second = resolve(a), resolve(b)
    if settings and "architecture" not in (first.kind, second.kind):
        raise UsageError(FOR_ARCHITECTURES)
    request = Request(a, "compare", kind, settings=settings or {}, seed=seed, factory=_factory(first))
    request = replace(request, other=b, other_factory=_factory(second))
    return Comparison.from_json(examine_isolated(request, timeout=timeout))


def examine_loss(target: str, *, pad_id: int | None = None, seed: int = 0, timeout: float = TIMEOUT) -> Json:
    """X-ray the loss function that 'file.py:name' or 'package.module:name' means; the table as plain data.

    Args:
        target: the function.
        pad_id: the token that stands for padding; by default what the function or its module calls so.
        seed: of inputs.
        timeout: in seconds.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    return examine_isolated(Request(target, task="loss", seed=seed, pad_id=pad_id), timeout=timeout)


def resolve(typed: str | None) -> Target:
    """What a person means by a target; by none at all, the newest run.

    Raises:
        UsageError: the words make no sense.
        DataError: there is no such run, or something else of that name.
    """
    if typed is None:
        folder = newest_folder()
        if folder is None:
            raise DataError(
                "there is no run here yet; 'clearhead train' makes one, or name a model, as in mymodel.py:build"
            )
        return Target("run", str(folder))
    try:
        return read(typed, find_folder)
    except UsageError as error:
        raise UsageError(f"{error}{did_you_mean(typed, [folder.name for folder in run_folders()])}") from None


def model_of_run(folder: str) -> "nn.Module":
    """The model of a run, in the process that examines it."""
    from clearhead.workflows.runs.folder import RunFolder

    return RunFolder(Path(folder)).model()
