"""A part of a fused matrix that no gradient reaches is found; units that sleep are none."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import Spec, check

V, D = 40, 16


class Fused(nn.Module):
    """Queries, keys and values come from one matrix."""

    def __init__(self, cut: str = "") -> None:
        super().__init__()
        self.cut = cut
        self.tokens, self.fused, self.head = nn.Embedding(V, D), nn.Linear(D, 3 * D), nn.Linear(D, V)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        with torch.no_grad():
            self.up.bias[: 2 * D] = -100.0  # asleep, whatever comes

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        parts = dict(zip("qkv", self.fused(x).chunk(3, dim=-1), strict=True))
        if self.cut:
            parts[self.cut] = parts[self.cut].detach()
        x = x + F.scaled_dot_product_attention(parts["q"], parts["k"], parts["v"], is_causal=True)
        logits: Tensor = self.head(x + self.down(self.up(x).relu()))
        return logits


@pytest.mark.parametrize("cut", ["k", "v"])
def test_a_part_without_gradient_is_found(cut: str) -> None:
    report = check(Fused(cut), Spec(kind="causal"), only=["I06"])
    assert [(finding.id, finding.status) for finding in report.findings] == [("I06", "fail")], str(report)
    assert "16 of 48 rows of fused.weight" in report["I06"].evidence.witness


def test_parts_that_learn_and_units_that_sleep_are_sound() -> None:
    report = check(Fused(), Spec(kind="causal"), only=["I06"])
    assert not report.findings, str(report)
    assert next(one.status for one in report.checks if one.name == "slices") == "pass"


class FedBack(Fused):
    """It goes on from what it predicted, which it does not learn from; every other unit is awake there alone."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.up.bias)

    def forward(self, ids: Tensor) -> Tensor:
        x, asleep = self.tokens(ids), torch.arange(4 * D) % 2 * 100.0
        query, key, value = self.fused(x).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(query, key, value, is_causal=True)
        before = self.down(self.up(x).relu()).detach()
        logits: Tensor = self.head(x + before + self.down((self.up(x) - asleep).relu()))
        return logits


def test_single_units_are_no_part() -> None:
    assert not check(FedBack(), Spec(kind="causal"), only=["slices"]).findings
