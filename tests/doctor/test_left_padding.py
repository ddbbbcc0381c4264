"""Prompts that are padded in front: read as they are alone, or the report says why not."""

from typing import Any

import pytest
import torch
from causal_helpers import CausalModel, triangle
from torch import Tensor, nn

from clearhead import doctor


class Padded(CausalModel):
    """A causal language model whose caller may give a mask and positions."""

    def places_of(self, ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
        if positions is not None:
            return positions
        return torch.arange(ids.shape[1]) if mask is None else (mask.long().cumsum(1) - 1).clamp(min=0)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None) -> Any:
        x = self.tokens(ids) + self.places(self.places_of(ids, attention_mask, position_ids))
        allowed = triangle(ids.shape[1])
        if attention_mask is not None:
            allowed = allowed & attention_mask.bool()[:, None, None] | torch.eye(len(allowed), dtype=torch.bool)
        for block in self.blocks:
            x = block(x, allowed)
        return self.head(self.norm(x))


class ByTheCaller(Padded):
    def places_of(self, ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
        return torch.arange(ids.shape[1]) if positions is None else positions


class NotTaken(Padded):
    def places_of(self, ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
        return torch.arange(ids.shape[1])


class Absolute(NotTaken):
    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Any:  # type: ignore[override]
        return super().forward(ids, attention_mask)


class Generating(Absolute):
    def generate(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return ids


def examined(model: nn.Module) -> doctor.Report:
    return doctor.check(model, only=["P04"])


OUTCOMES = {Padded: "pass", ByTheCaller: "pass", Absolute: "skip", NotTaken: "fail", Generating: "warn"}


@pytest.mark.parametrize(("kind", "status"), OUTCOMES.items())
def test_padding_in_front(kind: type[nn.Module], status: str) -> None:
    torch.manual_seed(0)
    report = examined(kind())
    assert next(one for one in report.checks if one.id == "P04").status == status, str(report)
    assert [one.id for one in report.findings] == (["P04"] if status in ("fail", "warn") else [])


def test_who_counts_is_told() -> None:
    told = [one.value for one in examined(ByTheCaller()).assumptions if one.about == "padding in front"]
    assert told == ["its caller gives position_ids"]
