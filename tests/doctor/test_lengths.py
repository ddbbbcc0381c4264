"""How many tokens follow must move nothing: a count from the end is found, whatever it is used for."""

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import check

V, D = 40, 16


class Counted(nn.Module):
    """A causal mean with positions; `way` says how they are counted."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.tokens, self.positions, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)

    def forward(self, ids: Tensor) -> Tensor:
        T = ids.shape[1]
        places = torch.arange(T)
        if self.way == "backwards":
            places = places.flip(0)
        x = self.tokens(ids) + self.positions(places)
        seen = x.cumsum(1) / (T if self.way == "divided" else torch.arange(1, T + 1)[:, None])
        logits: Tensor = self.head(seen)
        return logits


@pytest.mark.parametrize(("way", "module"), [("backwards", "positions"), ("divided", "")])
def test_a_count_from_the_end_is_found_where_it_enters(way: str, module: str) -> None:
    report = check(Counted(way), only=["M21"])
    assert [(finding.id, finding.status) for finding in report.findings] == [("M21", "fail")], str(report)
    assert report["M21"].where.module == module, str(report)


def test_a_count_from_the_first_token_is_sound() -> None:
    report = check(Counted("forwards"), only=["M21"])
    assert not report.findings, str(report)
    assert next(one.status for one in report.checks if one.name == "lengths") == "pass"
