"""The preflight of trainings that are about something else."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from clearhead.doctor import Report, Spec
from clearhead.doctor.training import preflight


def examine_once(patch: pytest.MonkeyPatch) -> None:
    """A preflight examines one fresh model of each config; what it finds in models is tested beside it."""
    patch.setattr(preflight, "check", remembered(preflight.check))


def remembered(check: Callable[..., Report]) -> Callable[..., Report]:
    known: dict[tuple[str, str], Report] = {}

    def check_once(model: nn.Module, spec: Spec, **options: Any) -> Report:
        key = str(model.config), str((spec, options))
        if not spec.fresh or key not in known:
            known[key] = check(model, spec, **options)
        return known[key]

    return check_once
