"""Heads that are put together otherwise than they were taken apart, where several axes have one size."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import check

V, D, H = 41, 32, 4


def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    mixed: Tensor = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
    return mixed


def by_letters(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = torch.einsum("bhtk,bhsk->bhts", query / query.shape[-1] ** 0.5, key)
    return torch.einsum("bhts,bhsk->bhtk", scores.softmax(-1), value)


def split(x: Tensor) -> Tensor:
    return x.view(len(x), -1, H, D // H).transpose(1, 2)


def split_wrongly(x: Tensor) -> Tensor:
    return x.reshape(len(x), H, -1, D // H)


def heads_last(x: Tensor) -> Tensor:
    return x.view(len(x), -1, D // H, H).movedim(-1, 1)


def by_channels(x: Tensor) -> Tensor:
    return split(x).mT


def merge(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


def merge_wrongly(heads: Tensor) -> Tensor:
    return heads.reshape(len(heads), -1, D)


def merge_heads_last(heads: Tensor) -> Tensor:
    return heads.movedim(1, -1).flatten(2)


def merge_channels(heads: Tensor) -> Tensor:
    return heads.permute(0, 3, 1, 2).flatten(2)


class Picture(nn.Module):
    """Of 8 parts, as wide as a head, so that no size tells one axis from another."""

    def __init__(self, attend: object, part: object, join: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.part, self.join = attend, part, join
        self.patches, self.places = nn.Conv2d(3, D, (4, 8), (4, 8)), nn.Parameter(torch.randn(8, D) / 5)
        self.qkv, self.proj, self.norm = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.LayerNorm(D)
        self.last, self.head = nn.LayerNorm(D), nn.Linear(D, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.patches(pictures).flatten(2).mT + self.places  # (B, 8, D)
        query, key, value = (self.part(t) for t in self.qkv(self.norm(x)).chunk(3, dim=-1))  # type: ignore[operator]
        x = x + self.proj(self.join(self.attend(query, key, value)))  # type: ignore[operator]
        logits: Tensor = self.head(self.last(x).mean(1))
        return logits


@pytest.mark.sampled(3)
@pytest.mark.parametrize("attend", [plain, by_letters, F.scaled_dot_product_attention])
@pytest.mark.parametrize(
    ("part", "join", "id"),
    [(split, merge_wrongly, "A05"), (split_wrongly, merge, "A04"), (lambda x: split(x).mT.mT, merge_wrongly, "A05")],
)
def test_tokens_that_are_put_together_of_parts(attend: object, part: object, join: object, id: str) -> None:
    finding = check(Picture(attend, part, join), only=["A05"])[id]
    assert (finding.status, finding.where.module) == ("fail", "proj")
    assert "parts of 4 tokens" in finding.evidence.witness


@pytest.mark.sampled(3)
@pytest.mark.parametrize("attend", [plain, by_letters, F.scaled_dot_product_attention])
@pytest.mark.parametrize(
    ("part", "join"), [(split, merge), (heads_last, merge_heads_last), (by_channels, merge_channels)]
)
def test_tokens_that_stay_whole(attend: object, part: object, join: object) -> None:
    assert not check(Picture(attend, part, join), only=["A05"]).findings
