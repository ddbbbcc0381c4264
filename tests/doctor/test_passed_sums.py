"""A sublayer after a post-norm reads the normalized sum, and not the branch in it alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import check

V, D, LAYERS = 41, 24, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).view(len(x), -1, 2, D // 2).transpose(1, 2) for part in (self.q, self.k, self.v))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """`reads`: what the feed-forward is given."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.attention, self.reads, self.drop = Attention(), reads, nn.Dropout(0.1)
        self.first, self.second = nn.LayerNorm(D), nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        branch = self.drop(self.attention(x))
        if self.reads == "an adapter's":
            return self.second(self.first(x) + branch + self.drop(self.mlp(branch)))  # type: ignore[no-any-return]
        h = self.first(x + branch)
        inputs = {"sum": h, "branch": branch, "input": x, "both": branch + x}
        return self.second(h + self.drop(self.mlp(inputs[self.reads])))  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self, reads: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)
        self.layers = nn.ModuleList(Layer(reads) for _ in range(LAYERS))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("reads", ["sum", "branch", "input", "both", "an adapter's"])
def test_a_sublayer_reads_the_sum(reads: str) -> None:
    report = check(Model(reads), only=["streams"])
    expected = [("N04", "fail", "layers.0")] if reads == "branch" else []
    assert [(finding.id, finding.status, finding.where.module) for finding in report.findings] == expected, str(report)


class ResiDual(nn.Module):
    """Each branch is added to two streams, of which one is normalized at once and one at the end (Xie et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)
        maps = (nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D)) for _ in range(LAYERS))
        self.sublayers = nn.ModuleList(part for mlp in maps for part in (Attention(), mlp))
        self.norms, self.norm = nn.ModuleList(nn.LayerNorm(D) for _ in self.sublayers), nn.LayerNorm(D)

    def forward(self, ids: Tensor) -> Tensor:
        x = dual = self.words(ids) + self.places.weight[: ids.shape[1]]
        for sublayer, norm in zip(self.sublayers, self.norms, strict=True):
            branch = sublayer(x)
            x, dual = norm(x + branch), dual + branch
        return self.head(x + self.norm(dual))  # type: ignore[no-any-return]


def test_a_branch_may_be_added_to_two_streams() -> None:
    assert "N04" not in {finding.id for finding in check(ResiDual(), only=["streams"]).findings}
