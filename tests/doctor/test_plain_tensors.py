"""Numbers that forward uses and that are neither parameters nor buffers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import check

V, D, LONGEST = 41, 32, 64


def drawn() -> Tensor:
    return torch.randn(LONGEST, D)


def trainable() -> Tensor:
    return torch.zeros(LONGEST, D, requires_grad=True)


def sinusoids() -> Tensor:
    angles = torch.arange(LONGEST)[:, None] * 10_000.0 ** (-torch.arange(0, D, 2) / D)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)


def slopes() -> Tensor:
    return -torch.arange(LONGEST)[:, None] * 2.0 ** -torch.arange(1, D + 1)


def rotations() -> Tensor:
    """Cosines and sines in axes of their own, (positions, D / 2, 2), as (positions, D)."""
    return sinusoids().view(LONGEST, D // 2, 2)


class Reader(nn.Module):
    """Adds a table of positions, however it is held, and averages what stands before."""

    def __init__(self, table: Tensor, held: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head, self.held = nn.Embedding(V, D), nn.Linear(D, V), held
        if held == "buffer":
            self.register_buffer("table", table)
        elif held == "parameter":
            self.register_parameter("table", nn.Parameter(table))
        elif held == "list":
            self.tables = [table]
        elif held == "computed":  # from numbers that are written over in each call
            self.table = table
        else:
            self.table = table

    def forward(self, ids: Tensor) -> Tensor:
        if self.held == "computed":
            self.table = sinusoids()
        table = self.tables[0] if self.held == "list" else self.table
        x = self.words(ids) + table[: ids.shape[1]].flatten(1)
        return self.head(x.cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None])  # type: ignore[no-any-return]


@pytest.mark.parametrize("held", ["attribute", "list"])
@pytest.mark.parametrize("table", [drawn, trainable])
def test_what_should_be_learned_or_saved_is_registered(table: Callable[[], Tensor], held: str) -> None:
    report = check(Reader(table(), held), only=["I05"])
    assert [(finding.id, finding.status) for finding in report.findings] == [("I05", "fail")], str(report)


@pytest.mark.parametrize(
    ("table", "held"),
    [
        (drawn, "buffer"),
        (drawn, "parameter"),
        (drawn, "computed"),
        (sinusoids, "attribute"),
        (rotations, "attribute"),
        (slopes, "attribute"),
    ],
)
def test_what_is_registered_or_can_be_computed_again(table: Callable[[], Tensor], held: str) -> None:
    report = check(Reader(table(), held), only=["I05"])
    assert not report.findings, str(report)


class Cloud(nn.Module):
    """Says one thing of a cloud of points, which have no order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.head = nn.Linear(3, D), nn.Linear(D, 2)
        self.layer = nn.TransformerEncoderLayer(D, 2, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.into(x)).mean(1))  # type: ignore[no-any-return]


def test_numbers_may_have_no_order() -> None:
    report = check(Cloud(), only=["P01"])
    assert [(finding.id, finding.status) for finding in report.findings] == [("P01", "warn")], str(report)
