"""Sinusoids that are none, and sinusoids that are hard to see."""

import math

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import Spec, check

V, D, MAX_LENGTH = 40, 32, 64


class Waved(nn.Module):
    """A causal mean over tokens and waves."""

    pe: Tensor

    def __init__(self, sign: int = -1, *, cosines: bool = True) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        angle = torch.arange(MAX_LENGTH)[:, None] * torch.exp(torch.arange(0, D, 2) * (sign * math.log(10000.0) / D))
        table = torch.stack((angle.sin(), angle.cos() if cosines else angle.sin()), dim=-1).flatten(1)
        self.register_buffer("pe", table)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.pe[: ids.shape[1]]
        logits: Tensor = self.head(torch.tanh(x).cumsum(1))
        return logits


@pytest.mark.parametrize(
    ("model", "said"), [(Waved(cosines=False), "repeat another"), (Waved(sign=1), "more than a radian")]
)
def test_waves_that_are_none_are_warned_of(model: nn.Module, said: str) -> None:
    report = check(model, Spec(kind="causal"), only=["P09"])
    assert [(finding.id, finding.status) for finding in report.findings] == [("P09", "warn")], str(report)
    assert said in report["P09"].evidence.witness


def test_waves_are_sound() -> None:
    assert not check(Waved(), Spec(kind="causal"), only=["P09"]).findings


class Certain(Waved):
    """Tokens are so large beside their waves that each attends to one token only, most often to itself."""

    def __init__(self, *, waves: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.waves, self.mixed = waves, nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        T = ids.shape[1]
        x = 9 * self.tokens(ids) + self.pe[:T] * self.waves
        ahead = torch.ones(T, T, dtype=torch.bool).triu(1)
        logits: Tensor = self.head(x + self.mixed(x, x, x, attn_mask=ahead, need_weights=False)[0])
        return logits


@pytest.mark.parametrize(("waves", "found"), [(True, []), (False, ["P01"])])
def test_positions_are_told_where_an_attention_looks_at_one_token_only(waves: bool, found: list[str]) -> None:
    report = check(Certain(waves=waves), Spec(kind="causal"), only=["positions"])
    assert [finding.id for finding in report.findings] == found, str(report)
