"""How many tokens follow must move nothing: a count from the end is found, whatever it is used for."""

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import Spec, check

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
    assert [(finding.id, finding.status) for finding in report.findings] == [("M21", "warn")], str(report)
    assert report["M21"].where.module == module, str(report)


def test_a_count_from_the_first_token_is_sound() -> None:
    report = check(Counted("forwards"), only=["M21"])
    assert not report.findings, str(report)
    assert next(one.status for one in report.checks if one.name == "lengths") == "pass"


class Masked(nn.Module):
    """Past tokens are averaged, of those that are real; `inverted`: of those that are padding."""

    def __init__(self, *, inverted: bool) -> None:
        super().__init__()
        self.inverted = inverted
        self.tokens, self.head = nn.Embedding(V, D), nn.Linear(D, V)

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        T = ids.shape[1]
        real = torch.ones_like(ids, dtype=torch.bool) if lengths is None else torch.arange(T) < lengths[:, None]
        seen = (~real if self.inverted and lengths is not None else real)[..., None]
        x = self.tokens(ids)
        logits: Tensor = self.head(x + (x * seen).cumsum(1) / seen.cumsum(1).clamp_min(1))
        return logits


def test_lengths_that_hide_real_tokens_are_told() -> None:
    spec = Spec(kind="causal")
    assert not check(Masked(inverted=False), spec, only=["M12"]).findings
    report = check(Masked(inverted=True), spec, only=["M12"])
    assert [(finding.id, finding.status) for finding in report.findings] == [("M12", "fail")], str(report)


class Refusing(Masked):
    """It takes its lengths as a list of numbers alone."""

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        assert not isinstance(lengths, Tensor), "a list, please"
        return super().forward(ids)


def test_lengths_that_it_refuses_are_not_said_to_hide_anything() -> None:
    report = check(Refusing(inverted=False), Spec(kind="causal"), only=["paddings"])
    assert [outcome.status for outcome in report.checks if outcome.name == "paddings"] == ["skip"], str(report)
    assert report.verdict == "unknown"


class OfOneLength(nn.Module):
    """An encoder-decoder whose targets have one length."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.tokens, self.head = nn.Embedding(V, D), nn.Embedding(V, D), nn.Linear(D, V)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        assert tgt.shape[1] >= 8, "no rows as short as that"
        logits: Tensor = self.head(self.tokens(tgt).cumsum(1) + self.source(src).tanh().sum(1, keepdim=True))
        return logits


def test_a_path_that_raises_is_named_in_the_report() -> None:
    report = check(OfOneLength(), Spec(kind="seq2seq"), only=["sources"])
    assert "a shorter target (could not be run: AssertionError)" in report.paths, str(report.paths)
