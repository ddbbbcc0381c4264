"""Sinusoids that are none: sines for cosines, and waves that grow faster where they should slow down."""

import math

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import Spec, check

V, D, LONGEST = 40, 32, 64


class Waved(nn.Module):
    """A causal mean over tokens and waves."""

    pe: Tensor

    def __init__(self, sign: int = -1, *, cosines: bool = True) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        angle = torch.arange(LONGEST)[:, None] * torch.exp(torch.arange(0, D, 2) * (sign * math.log(10000.0) / D))
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
