"""The doctor's examination of a run, a file, a module or an architecture, in this process."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from clearhead.doctor import Report, Spec, check
from clearhead.doctor.spec import Level
from clearhead.doctor.targets import load
from clearhead.workflows.run import Run
from clearhead.workflows.runs import open_run


def examine(
    target: str | Path | Run | nn.Module | None = None,
    spec: Spec | None = None,
    *,
    level: Level = "quick",
    only: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Report:
    """Prove or refute that a model is right.

    Args:
        target: a model; 'file.py:name', 'package.module:name', 'hf:NAME' or 'hf:FOLDER'; or a run, by default the
            newest. The code of a target is imported and called here; the command does that in another process.
        spec, level, only, seed: as in `doctor.check`.
        settings: values of the config of 'hf:NAME'.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    if isinstance(target, nn.Module):
        return check(target, spec, level=level, only=only, seed=seed)
    if isinstance(target, str) and (":" in target or target.endswith(".py")):
        return check(load(target, settings), spec, level=level, only=only, seed=seed, name=target)
    run = open_run(target)
    return check(run.model(), spec or Spec(fresh=False), level=level, only=only, seed=seed, name=str(run.folder))


def model_of_run(name: str) -> nn.Module:
    """The model of a run by its folder or name; of the newest, if the name is empty."""
    return open_run(name or None).model()
