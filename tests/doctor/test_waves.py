"""Sinusoids that are none, and sinusoids that are hard to see."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import Spec, check

V, D, MAX_LENGTH = 40, 32, 64


class Waved(nn.Module):
    """A causal mean over tokens and waves."""

    pe: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        angle = torch.arange(MAX_LENGTH)[:, None] * torch.exp(torch.arange(0, D, 2) * (-math.log(10000.0) / D))
        table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)
        self.register_buffer("pe", table)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.pe[: ids.shape[1]]
        logits: Tensor = self.head(torch.tanh(x).cumsum(1))
        return logits


def test_waves_are_sound() -> None:
    assert not check(Waved(), Spec(kind="causal"), only=["P09"]).findings


def paired(even: Tensor, odd: Tensor, n: int) -> Tensor:
    """Sines and cosines (n, width) of two lists of frequencies, in turn."""
    t = torch.arange(n)[:, None]
    return torch.stack(((t * even).sin(), (t * odd).cos()), dim=-1).flatten(1)


def series(width: int, power: float = 1.0, base: float = 10000.0) -> Tensor:
    return base ** (-power * torch.arange(0, width, 2) / width)


def halves(width: int, n: int) -> Tensor:
    """All sines before all cosines, the last of which turns 10000 times as slowly as the first: tensor2tensor's."""
    angle = torch.arange(n)[:, None] * torch.exp(torch.arange(width // 2) * (-math.log(10000.0) / (width // 2 - 1)))
    return torch.cat((angle.sin(), angle.cos()), dim=1)


def unplaced(table: Tensor) -> Tensor:
    """With the first row at zero, as for padding."""
    return torch.cat((torch.zeros_like(table[:1]), table[1:]))


TABLES: dict[str, tuple[Callable[[int, int], Tensor], str]] = {
    "right": (lambda d, n: paired(series(d), series(d), n), ""),
    "halves": (halves, ""),
    "another base": (lambda d, n: paired(series(d, base=500.0), series(d, base=500.0), n), "to the base 500"),
    "twice the exponent": (lambda d, n: paired(series(d, 2), series(d, 2), n), "to the base 1e"),
    "an exponent for each column": (
        lambda d, n: paired(series(d, 2), series(d, 2) * 10000 ** (-2 / d), n),
        "different speeds",
    ),
    "a cosine with the exponent of its own column": (
        lambda d, n: paired(series(d), series(d) * 10000 ** (-1 / d), n),
        "different speeds",
    ),
    "sines alone, and an exponent for each column": (
        lambda d, n: (torch.arange(n)[:, None] * 10000 ** (-2 * torch.arange(d) / d)).sin(),
        "longer than 10000",
    ),
    "right, but for padding": (lambda d, n: unplaced(halves(d, n)), ""),
    "an exponent for each column, and padding": (
        lambda d, n: unplaced(paired(series(d, 2), series(d, 2) * 10000 ** (-2 / d), n)),
        "different speeds",
    ),
    "one wave": (lambda d, n: paired(torch.ones(d // 2), torch.ones(d // 2), n), "at one speed"),
    "no waves": (lambda d, n: torch.rand(n, d, generator=torch.Generator().manual_seed(0)) - 0.5, ""),
}


class Placed(Waved):
    """The same with any table, kept in a buffer or as a plain attribute, or made anew in each call."""

    def __init__(self, place: str, table: Tensor) -> None:
        """Frequencies are 1 / 10000 to a power, which is what its code says."""
        super().__init__()
        self.place = place
        if place == "buffer":
            self.pe = table
        else:
            del self.pe
            self.table = table

    def forward(self, ids: Tensor) -> Tensor:
        table = self.pe if self.place == "buffer" else self.table
        table = table[: ids.shape[1]] * 1.0 if self.place == "anew" else table[: ids.shape[1]]
        logits: Tensor = self.head(torch.tanh(self.tokens(ids) + table).cumsum(1))
        return logits


@pytest.mark.sampled
@pytest.mark.parametrize("place", ["buffer", "attribute", "anew"])
@pytest.mark.parametrize("name", TABLES)
def test_wavelengths_form_one_series(name: str, place: str) -> None:
    make, said = TABLES[name]
    report = check(Placed(place, make(D, MAX_LENGTH)), Spec(kind="causal"), only=["P09"])
    status = "warn" if "its own" in name else "fail"  # all in one series, each pair is nearly one
    assert [(finding.id, finding.status) for finding in report.findings] == ([("P09", status)] if said else []), report
    assert not said or said in report["P09"].evidence.witness


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


class Mapped(Waved):
    """What a map makes of the waves of a few frames is added to them; rows may lie along the second axis."""

    def __init__(self, table: Tensor, *, time_first: bool) -> None:
        super().__init__()
        del self.pe
        self.numbers, self.time_first, self.map = table, time_first, nn.Linear(D, D)

    def forward(self, ids: Tensor) -> Tensor:
        frames = self.tokens(ids)[:, ::2].transpose(0, 1)
        waves = self.numbers[: len(frames), None].expand_as(frames) * 1.0
        x, mapped = frames.transpose(0, 1), self.map(waves if self.time_first else waves.transpose(0, 1))
        x = x + (mapped.transpose(0, 1) if self.time_first else mapped)
        logits: Tensor = self.head(torch.tanh(x).cumsum(1).repeat_interleave(2, 1)[:, : ids.shape[1]])
        return logits


@pytest.mark.parametrize("time_first", [True, False])
@pytest.mark.parametrize("name", ["right", "halves", "an exponent for each column"])
def test_waves_are_seen_wherever_they_are_read(name: str, *, time_first: bool) -> None:
    make, said = TABLES[name]
    report = check(Mapped(make(D, MAX_LENGTH), time_first=time_first), Spec(kind="causal"), only=["P09"])
    assert [finding.id for finding in report.findings] == (["P09"] if said else []), str(report)
