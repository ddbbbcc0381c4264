"""Parts as strangers write them: what is random, thrown away, called in another's place, or one matrix in two."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import Report, Spec, check

V, D, LAYERS = 41, 24, 2


def failures(report: Report) -> set[str]:
    return {finding.id for finding in report.findings if finding.status == "fail"}


class Attention(nn.Module):
    """With an output map of its own; `joined` without moving the axis of the heads."""

    def __init__(self, *, causal: bool = True, joined: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.causal, self.joined = causal, joined

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (part(x).view(B, T, 2, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) * (D // 2) ** -0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
        heads = scores.softmax(-1) @ v
        return self.o((heads if self.joined else heads.transpose(1, 2)).reshape(B, T, D))  # type: ignore[no-any-return]


def wide(between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(D, 2 * D), between, nn.Linear(2 * D, D))


def square(between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(D, D), between, nn.Linear(D, D))


class Convolved(nn.Module):
    def __init__(self, width: int, between: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(D, width, 1), nn.Conv1d(width, D, 1)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.between(self.conv1(x.mT))).mT  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Pre-norm. `twice`: the first attention is called in place of the second as well."""

    def __init__(self, mlp: nn.Module | None = None, *, twice: bool = False, **options: bool) -> None:
        super().__init__()
        self.ln1, self.ln2, self.ln3 = (nn.LayerNorm(D) for _ in range(3))
        self.first, self.second = Attention(**options), Attention(**options)
        self.mlp, self.twice, self.proj = mlp or wide(nn.GELU()), twice, nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.proj(self.first(self.ln1(x)))  # two square maps, of which one belongs to the attention
        x = x + (self.first if self.twice else self.second)(self.ln2(x))
        return x + self.mlp(self.ln3(x))  # type: ignore[no-any-return]


class Model(nn.Module):
    """`noise`: added to its input; `before`: a part behind the positions; `places`: whether these are added."""

    def __init__(
        self,
        layer: Callable[[], nn.Module] = Layer,
        *,
        noise: Callable[[Tensor], Tensor] = torch.zeros_like,
        before: nn.Module | None = None,
        ends: bool = True,
        places: bool = True,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.positions, self.mix = nn.Embedding(V, D), nn.Embedding(64, D), wide(nn.ReLU())
        self.layers = nn.ModuleList(layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(D) if ends else nn.Identity(), nn.Linear(D, V)
        self.noise, self.before, self.places = noise, before or nn.Identity(), places

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x + self.mix(x)
        x = self.before(x + self.positions.weight[: ids.shape[1]] if self.places else x)
        x = x + self.noise(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def of_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.random.randn(*x.shape)).to(x)


@pytest.mark.parametrize(("noise", "status"), [(torch.randn_like, "fail"), (of_numpy, "warn")])
def test_what_is_random_does_not_hide_a_missing_norm(noise: Callable[[Tensor], Tensor], status: str) -> None:
    report = check(Model(noise=noise, ends=False))
    assert (report["T09"].status, report["N03"].status) == (status, "fail"), str(report)
    assert failures(check(Model(noise=noise))) == ({"T09"} if status == "fail" else set())


@pytest.mark.parametrize(
    ("mlp", "is_matrix"),
    [
        (lambda: wide(nn.Identity()), True),
        (lambda: square(nn.Dropout(0.1)), True),
        (lambda: Convolved(2 * D, nn.Identity()), True),
        (lambda: Convolved(D, nn.Dropout(0.1)), True),
        (lambda: wide(nn.ReLU(inplace=True)), False),
        (lambda: square(nn.GELU()), False),
        (lambda: Convolved(D, nn.ReLU()), False),
    ],
)
def test_two_maps_in_a_row_are_one_matrix(mlp: Callable[[], nn.Module], is_matrix: bool) -> None:
    report = check(Model(lambda: Layer(mlp())), only=["F01"])
    assert failures(report) == ({"F01"} if is_matrix else set()), str(report)


def test_a_part_is_called_in_place_of_another() -> None:
    report = check(Model(lambda: Layer(twice=True)), only=["A13"])
    assert [(finding.id, finding.status, finding.where.module) for finding in report.findings] == [
        ("A13", "fail", "layers.0")
    ], str(report)


def test_dropout_behind_the_positions_is_not_on_the_stream() -> None:
    assert not check(Model(before=nn.Dropout(0.1)), only=["N10"]).findings


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(("part", "ids"), [("ends", {"N10"}), ("begins", set())])
def test_dropout_behind_a_norm_lies_on_the_stream(part: str, ids: set[str], joined: bool) -> None:
    class Post(Layer):
        def __init__(self) -> None:
            super().__init__(joined=joined)
            self.drop = nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.ln1(x + self.drop(self.first(x)))
            x = self.ln2(x + self.drop(self.mlp(x)))
            return self.drop(x) if part == "ends" else x

    report = check(Model(Post, before=nn.Sequential(nn.LayerNorm(D), nn.Dropout(0.1))))
    assert failures(report) & {"N10"} == ids, str(report)
    assert bool(failures(report) & {"A04", "A05"}) == joined, str(report)  # which does not hide it


class Bare(Model):
    """One layer stands in the model itself, called again and again. `adds`: its attention is added to what it reads."""

    def __init__(self, adds: bool) -> None:
        super().__init__(nn.Identity)
        self.attention, self.mlp = Attention(causal=False), wide(nn.GELU())
        self.ln1, self.ln2, self.adds, self.mix = nn.LayerNorm(D), nn.LayerNorm(D), adds, nn.Identity()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        for _ in range(LAYERS):
            attended = self.attention(x)
            x = self.ln1(x + attended if self.adds else attended)
            x = self.ln2(x + self.mlp(x))
        return self.head(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("adds", [False, True])
def test_a_residual_around_an_attention_that_stands_in_the_model(adds: bool) -> None:
    assert failures(check(Bare(adds), only=["N04"])) == (set() if adds else {"N04"})


def test_a_leak_does_not_hide_missing_positions() -> None:
    for places in (False, True):
        report = check(Model(lambda: Layer(causal=False), places=places), Spec(kind="causal"), only=["M01", "P01"])
        assert failures(report) == ({"M01"} if places else {"M01", "P01"}), str(report)


class Pictures(nn.Module):
    """16 pixels across, of which a patch takes `size`. `row`: of positions, the same for all."""

    def __init__(self, size: int, *, row: bool = False, joined: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image_size, self.row = 16, row
        self.patches, self.head = nn.Conv2d(3, D, size, size), nn.Linear(D, 5)
        self.positions, self.norm = nn.Parameter(torch.randn((16 // size) ** 2, D)), nn.LayerNorm(D)
        self.layers = nn.ModuleList(Layer(causal=False, joined=joined) for _ in range(LAYERS))

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)  # (B, D, h, w) -> (B, h * w, D)
        x = x + (self.positions[-1] if self.row else self.positions)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("size", [4, 8])
def test_patches_with_one_position_have_no_order(size: int) -> None:
    assert failures(check(Pictures(size, row=True), only=["positions"])) == {"P01"}
    assert not check(Pictures(size), only=["positions"]).findings


def test_heads_of_patches_are_joined_without_moving_their_axis() -> None:
    assert failures(check(Pictures(4, joined=True), only=["A05"])) == {"A05"}
    assert not check(Pictures(4), only=["A05"]).findings
