"""The preflight of trainings that are about something else."""

from typing import Any

import pytest
from torch import nn

from clearhead.doctor import Report, Spec, check

KNOWN: dict[tuple[str, str], Report] = {}  # of all tests of a process


def examine_once(patch: pytest.MonkeyPatch) -> None:
    """A preflight examines one fresh model of each config; what it finds in models is tested beside it."""
    patch.setattr("clearhead.doctor.training.preflight.check", examine_or_remember)


def examine_or_remember(model: nn.Module, spec: Spec, **options: Any) -> Report:
    key = str(model.config), str((spec, options))
    if not spec.fresh or key not in KNOWN:
        KNOWN[key] = check(model, spec, **options)
    return KNOWN[key]
