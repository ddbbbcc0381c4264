"""The scale of scores: one over the root of a head's width, whatever the layout of the heads."""

import math

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import check

V, D, H = 97, 48, 4
K = D // H


class Attention(nn.Module):
    """Heads in four axes, or in three, or in four in the order in which they were split, or with other axes last."""

    def __init__(self, scale: float, axes: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.scale, self.axes = scale, axes

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (part(x).view(B, T, H, K).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.axes == 0:
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
            scores = torch.einsum("bthk,bshk->bhts", q, k) * self.scale
            weights = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
            return self.o(torch.einsum("bhts,bshk->bthk", weights, v).reshape(B, T, D))  # type: ignore[no-any-return]
        if self.axes == 1:  # keys in front, queries behind the rows
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
            scores = torch.einsum("bthk,bshk->sbth", q, k) * self.scale
            ahead = torch.ones(T, T, dtype=torch.bool).tril(-1)[:, None, :, None]  # (T_k, 1, T_q, 1)
            weights = scores.masked_fill(ahead, -torch.inf).softmax(0)
            return self.o(torch.einsum("sbth,bshk->bthk", weights, v).reshape(B, T, D))  # type: ignore[no-any-return]
        if self.axes == 5:  # time first
            q, k, v = (tensor.permute(2, 0, 1, 3) for tensor in (q, k, v))
            scores = torch.einsum("tbhk,sbhk->tsbh", q, k) * self.scale
            ahead = torch.ones(T, T, dtype=torch.bool).triu(1)[..., None, None]  # (T_q, T_k, 1, 1)
            weights = scores.masked_fill(ahead, -torch.inf).softmax(1)
            return self.o(torch.einsum("tsbh,sbhk->bthk", weights, v).reshape(B, T, D))  # type: ignore[no-any-return]
        if self.axes == 2:  # products in the usual order, and keys moved in front of the heads afterwards
            scores = (q @ k.transpose(-2, -1) * self.scale).permute(0, 2, 3, 1)  # (B, T_q, T_k, H)
            ahead = torch.ones(T, T, dtype=torch.bool).triu(1)[..., None]  # (T_q, T_k, 1)
            weights = scores.masked_fill(ahead, -torch.inf).softmax(2)
            return self.o(torch.einsum("btsh,bhsk->bthk", weights, v).reshape(B, T, D))  # type: ignore[no-any-return]
        if self.axes == 3:
            q, k, v = (tensor.reshape(B * H, T, K) for tensor in (q, k, v))
        ahead = torch.ones(T, T, dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(-2, -1) * self.scale).masked_fill(ahead, -torch.inf).softmax(-1)
        y = (weights @ v).view(B, H, T, K).transpose(1, 2)
        return self.o(y.reshape(B, T, D))  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self, scale: float, axes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.positions, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
        self.layers = nn.ModuleList(Attention(scale, axes) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(x)  # type: ignore[no-any-return]


class Mapped(nn.Module):
    """A map whose weight is a bare parameter."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_in, d_out) / d_in**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Rooted(Attention):
    def __init__(self, scale: float, axes: int) -> None:
        super().__init__(scale, axes)
        self.scale = 1 / math.sqrt(D)


@pytest.mark.parametrize(("attention", "status"), [(Attention, "warn"), (Rooted, "fail")])
def test_a_root_may_be_the_width_itself(monkeypatch: pytest.MonkeyPatch, attention: type, status: str) -> None:
    for name, size in (("D", 64), ("H", 8), ("K", 8)):
        monkeypatch.setitem(globals(), name, size)
    model = Model(1 / 8, 4)
    model.layers = nn.ModuleList(attention(1 / 8, 4) for _ in range(2))
    assert [(finding.id, finding.status) for finding in check(model, only=["A01"]).findings] == [("A01", status)]


def test_a_product_with_a_parameter_is_a_map() -> None:
    model = Model(D**-0.5, 4)
    for layer in model.layers:
        for name in "qkvo":
            setattr(layer, name, Mapped(D, D))
    assert [(finding.id, finding.status) for finding in check(model, only=["A01"]).findings] == [("A01", "fail")]


@pytest.mark.parametrize("axes", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("scale", "found"),
    [
        *((scale, []) for scale in (K**-0.5, 1 / K, (2 * K) ** -0.5)),
        *((scale, [("A01", "fail")]) for scale in (D**-0.5, 1.0, K**0.5)),
        (3.0, [("A01", "warn")]),
    ],
)
def test_scores_are_divided_by_the_root_of_a_heads_width(axes: int, scale: float, found: list[tuple[str, str]]) -> None:
    report = check(Model(scale, axes), only=["A01"])
    assert [(finding.id, finding.status) for finding in report.findings] == found, str(report)


class Normalized(Attention):
    """Its queries and keys are divided by their lengths, so that scores may be multiplied by the root of the width."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (part(x).view(B, T, H, K).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = (tensor / tensor.square().sum(-1, keepdim=True).sqrt() for tensor in (q, k))
        ahead = torch.ones(T, T, dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(-2, -1) * self.scale).masked_fill(ahead, -torch.inf).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).reshape(B, T, D))  # type: ignore[no-any-return]


def test_scores_of_normalized_vectors_may_be_multiplied_by_the_root() -> None:
    model = Model(K**0.5, 4)
    model.layers = nn.ModuleList(Normalized(K**0.5, 4) for _ in range(2))
    assert not [finding for finding in check(model, only=["A01"]).findings if finding.status == "fail"]


class Cosine(Attention):
    """Scores are cosines, products divided by both lengths; if `learned`, a weight times the products."""

    def __init__(self, scale: float, axes: int, *, learned: bool) -> None:
        super().__init__(scale, axes)
        self.factor = nn.Parameter(torch.ones(())) if learned else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (H, K)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1)  # (B, H, T, T)
        if self.factor is None:
            scores = scores / (q.norm(dim=-1)[..., None] * k.norm(dim=-1)[..., None, :])
        else:
            scores = scores * self.factor
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


@pytest.mark.parametrize("learned", [False, True])
def test_cosines_and_learned_scales_are_scales(learned: bool) -> None:
    model = Model(1.0, 4)
    model.layers = nn.ModuleList(Cosine(1.0, 4, learned=learned) for _ in range(2))
    assert not check(model, only=["A01"]).findings
