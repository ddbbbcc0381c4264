"""What a call leaves behind: in the tensors that it was given, and for the next call."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import check

V, D = 40, 16


class Running(nn.Module):
    """A causal mean of what stands before."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(V, D), nn.Linear(D, V)

    def hidden(self, ids: Tensor) -> Tensor:
        mean: Tensor = self.tokens(ids).cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None]
        return mean

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.hidden(ids))


class Buffered(Running):
    """Sums are kept in a buffer that grows with the longest row: a call reads what it wrote, and no more."""

    kept: Tensor

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.whole = whole
        self.register_buffer("kept", torch.zeros(64, 64, D))

    def hidden(self, ids: Tensor) -> Tensor:
        rows, T = ids.shape
        self.kept[:rows, :T] = super().hidden(ids).detach()
        kept = self.kept[:rows] if self.whole else self.kept[:rows, :T]
        return super().hidden(ids) + kept.mean(1, keepdim=True) * (1 if self.whole else 0)


class Carried(Running):
    """The last state of one call is the first of the next."""

    state: Tensor | None = None

    def hidden(self, ids: Tensor) -> Tensor:
        hidden = super().hidden(ids)
        hidden = hidden if self.state is None else hidden + self.state
        self.state = hidden[:, -1:].detach()
        return hidden


class Clamping(Running):
    def forward(self, ids: Tensor) -> Any:
        return super().forward(ids.clamp_(max=V // 2))


class Hiding(Running):
    """The first token is never hidden, which the mask is told in place, or a copy of it."""

    def __init__(self, *, copies: bool) -> None:
        super().__init__()
        self.copies = copies

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Any:  # type: ignore[override]
        mask = attention_mask.clone() if self.copies else attention_mask
        mask += torch.arange(mask.shape[1]) == 0  # (B, T), at least 1 in front
        return self.head(self.hidden(ids) * mask[..., None].clamp(max=1))


class Reshaping(Hiding):
    """The mask gets its last axis in place, or a view of it does."""

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Any:  # type: ignore[override]
        mask = attention_mask.unsqueeze(-1) if self.copies else attention_mask.unsqueeze_(-1)
        return self.head(self.hidden(ids) * mask)


@pytest.mark.parametrize(
    ("model", "id"),
    [
        (Reshaping(copies=False), "D18"),
        (Buffered(whole=True), "T08"),
        (Carried(), "T08"),
        (Clamping(), "D18"),
        (Hiding(copies=False), "D18"),
    ],
)
def test_what_a_call_leaves_behind_is_told(model: nn.Module, id: str) -> None:
    report = check(model, only=["T08", "D18"])
    assert report.findings[0].id == id, str(report)
    assert report.findings[0].status == "fail"


@pytest.mark.parametrize("model", [Running(), Buffered(whole=False), Hiding(copies=True), Reshaping(copies=True)])
def test_buffers_that_are_written_before_they_are_read_are_no_memory(model: nn.Module) -> None:
    report = check(model, only=["T08", "D18"])
    assert not report.findings, str(report)
    assert "memory" in {one.name for one in report.checks if one.status == "pass"}
