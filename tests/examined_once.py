"""The preflight of trainings that are about something else."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from clearhead.doctor import Report, Spec, check


def examine_once(patch: pytest.MonkeyPatch) -> None:
    """A preflight examines one fresh model of each config; what it finds in models is tested beside it."""
    patch.setattr("clearhead.doctor.training.preflight.check", remembered(check))


def remembered(examine: Callable[..., Report]) -> Callable[..., Report]:
    known: dict[tuple[str, str], Report] = {}

    def examine_or_remember(model: nn.Module, spec: Spec, **options: Any) -> Report:
        key = str(model.config), str((spec, options))
        if not spec.fresh or key not in known:
            known[key] = examine(model, spec, **options)
        return known[key]

    return examine_or_remember
