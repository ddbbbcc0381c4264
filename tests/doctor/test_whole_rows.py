"""Models that say one thing of a whole row, and models that read numbers: pictures, series, speech."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import Report, check

D = 16


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        x = x + self.o(F.scaled_dot_product_attention(self.q(y), self.k(y), self.v(y), attn_mask=mask))
        return x + self.down(F.gelu(self.up(self.after(x))))  # type: ignore[no-any-return]


class Rows(nn.Module):
    """Token ids, 0 is padding, to scores of five classes."""

    def __init__(self, pool: str = "mean", outputs: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pool = pool
        self.words, self.places = nn.Embedding(50, D, padding_idx=0), nn.Embedding(64, D)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, outputs)

    def encode(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)  # type: ignore[no-any-return]

    def forward(self, ids: Tensor) -> Tensor:
        keep = ids != 0
        x = self.encode(self.words(ids) + self.places.weight[: ids.shape[1]], keep[:, None, :])
        told = {
            "mean": lambda: (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True),
            "all": lambda: x.mean(1),
            "length": lambda: (x * keep[..., None]).sum(1) / ids.shape[1],
            "first": lambda: x[:, 0],
            "max": lambda: x.masked_fill(~keep[..., None], -1e4).amax(1),
            "last": lambda: x[:, -1],
        }[self.pool]()
        return self.head(told)  # type: ignore[no-any-return]


class Score(Rows):
    """One number for a row."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids)[:, 0]


class Batched(Rows):
    """The scores of a class sum to one over the batch."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).softmax(0)


class Alike(Rows):
    """How every row is like every other of the batch."""

    def forward(self, ids: Tensor) -> Tensor:
        told = super().forward(ids)
        return told @ told.t()


class Joined(Rows):
    """What is padding in one row is hidden only where it is padding in all."""

    def forward(self, ids: Tensor) -> Tensor:
        keep = (ids != 0).any(0).expand(ids.shape)
        return self.head(self.encode(self.words(ids) + self.places.weight[: ids.shape[1]], keep[:, None, :]))  # type: ignore[no-any-return]


class Typed(Rows):
    """Kinds of tokens that may be given."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads, self.type_table = reads, nn.Embedding(2, D)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        kinds = token_type_ids if token_type_ids is not None and self.reads else torch.zeros_like(input_ids)
        x = self.words(input_ids) + self.places.weight[: input_ids.shape[1]] + self.type_table(kinds)
        return self.head(self.encode(x, (input_ids != 0)[:, None]))  # type: ignore[no-any-return]


class Picture(Rows):
    """A picture in patches to scores of classes."""

    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.mixes, self.patches = mixes, nn.Conv2d(3, D, 4, 4)
        self.places = nn.Embedding(16, D)
        del self.words

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places.weight
        x = self.encode(x - x.mean(0, keepdim=True) if self.mixes else x)
        return self.head(x[:, 0])  # type: ignore[no-any-return]


class Series(Rows):
    """Values of a causal series to the next ones, of every step."""

    def __init__(self, ahead: int = 0, always: bool = True) -> None:
        super().__init__(outputs=3)
        self.ahead, self.always, self.values = ahead, always, nn.Linear(3, D)
        del self.words

    def forward(self, series: Tensor) -> Tensor:
        T = series.shape[1]
        seen = torch.ones(T, T, dtype=torch.bool).tril(self.ahead if self.training or self.always else T)
        return self.head(self.encode(self.values(series) + self.places.weight[:T], seen))  # type: ignore[no-any-return]


def ids(report: Report) -> list[str]:
    return [finding.id for finding in report.findings]


@pytest.mark.parametrize("model", [*(Rows(pool) for pool in ("mean", "first", "max")), Score(), Alike()])
def test_what_is_said_of_a_row_is_examined(model: nn.Module) -> None:
    report = check(model)
    assert report.verdict == "healthy", str(report)
    assert not report.findings, str(report)
    assert report.kind == "bidirectional"
    assert {"rows", "paddings", "positions"} <= {one.name for one in report.checks if one.status == "pass"}


@pytest.mark.parametrize("pool", ["all", "length", "last"])
def test_padding_that_is_pooled(pool: str) -> None:
    report = check(Rows(pool))
    assert ids(report)[0] == "M22", str(report)
    assert report["M22"].where.file == __file__


def test_rows_that_are_mixed() -> None:
    assert ids(check(Batched()))[0] == "A10"


@pytest.mark.parametrize("model", [Picture(), Series()])
def test_models_that_read_numbers_are_healthy(model: nn.Module) -> None:
    report = check(model)
    assert report.verdict == "healthy", str(report)
    assert not report.findings, str(report)


def test_pictures_that_are_mixed() -> None:
    assert ids(check(Picture(mixes=True)))[0] == "N02"


def test_a_series_that_knows_its_next_step() -> None:
    report = check(Series(ahead=1))
    assert ids(report)[0] == "M06", str(report)
    assert report.kind == "causal"


def test_a_mask_that_evaluation_loses() -> None:
    report = check(Series(always=False))
    assert ids(report)[0] == "M02", str(report)
    assert report["M02"].where.backend == "eval()"


def test_a_mask_that_the_rows_share() -> None:
    assert "M11" in ids(check(Joined()))


@pytest.mark.parametrize(("reads", "found"), [(True, []), (False, ["E07"])])
def test_kinds_of_tokens_that_are_replaced_by_zeros(reads: bool, found: list[str]) -> None:
    assert ids(check(Typed(reads))) == found


class Block(nn.Module):
    """A layer of two parts. `lost`: the part that nothing leads around."""

    def __init__(self, lost: str) -> None:
        super().__init__()
        self.lost = lost
        self.norm, self.mixed = nn.LayerNorm(D), nn.MultiheadAttention(D, 2, batch_first=True)
        self.forward_part = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        y = self.mixed(y, y, y)[0]
        x = y if self.lost == "mixed" else x + y
        made: Tensor = self.forward_part(x)
        return made if self.lost == "forward_part" else x + made


class Pooled(nn.Module):
    def __init__(self, lost: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, D, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, D))
        self.layers = nn.ModuleList(Block(lost) for _ in range(3))
        self.head = nn.Linear(D, 7)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)  # (B, D, h, w) -> (B, h * w, D)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), dim=1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("lost", ["", "mixed", "forward_part"])
def test_a_missing_residual_is_found_where_one_place_is_read(lost: str) -> None:
    report = check(Pooled(lost), only=["residuals"])
    assert next(one.status for one in report.checks if one.name == "residuals") == ("fail" if lost else "pass")
    assert [(one.id, one.where.module) for one in report.findings] == ([("N04", "layers.0")] if lost else [])


class OneForAll(Pooled):
    """The first of its layers is applied as often as there are layers."""

    def __init__(self, layers: int) -> None:
        super().__init__("")
        self.layers = self.layers[:layers]

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)  # (B, D, h, w) -> (B, h * w, D)
        for _ in range(3):
            x = self.layers[0](x)
        return self.head(x.mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("layers", "found"), [(3, ["layers.0"]), (1, [])])
def test_a_layer_in_the_place_of_all_is_found(layers: int, found: list[str]) -> None:
    report = check(OneForAll(layers), only=["I02"])
    assert [one.where.module for one in report.findings if one.id == "I02"] == found, str(report)


class OfPoints(nn.Module):
    """Points of a cloud, in no order, to a class. `placed`: a table of positions is there, and not added."""

    def __init__(self, *, placed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.points, self.layers = nn.Linear(3, D), nn.ModuleList(Layer() for _ in range(2))
        self.pos_embedding = nn.Parameter(torch.randn(64, D)) if placed else None
        self.head = nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.points(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.amax(1))  # type: ignore[no-any-return]


class OfPlaces(OfPoints):
    """Where a point is, is made of the point: no order is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.pos_encoding = nn.Linear(3, D)

    def forward(self, x: Tensor) -> Tensor:
        where = self.pos_encoding(x).sin()
        x = self.points(x) + where
        for layer in self.layers:
            x = layer(x)
        return self.head(x.amax(1))  # type: ignore[no-any-return]


class OfScans(OfPoints):
    """Several clouds have places of their own; here there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.pos_of_scans = nn.Parameter(torch.randn(4, 1, D))

    def forward(self, x: Tensor) -> Tensor:
        x = self.points(x) + self.pos_of_scans[0]
        for layer in self.layers:
            x = layer(x)
        return self.head(x.amax(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("build", "status"),
    [(OfPoints, "warn"), (OfPlaces, "warn"), (OfScans, "warn"), (partial(OfPoints, placed=True), "fail")],
)
def test_points_may_have_no_order(build: Callable[[], nn.Module], status: str) -> None:
    report = check(build(), only=["positions"])
    assert [(one.id, one.status) for one in report.findings] == [("P01", status)], str(report)


class HidesPatches(Pooled):
    """Half of the patches, drawn at random, are left out. `noisy`: and noise is added to the rest."""

    def __init__(self, *, noisy: bool = False) -> None:
        super().__init__("")
        self.noisy = noisy

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)  # (B, D, h, w) -> (B, h * w, D)
        kept = torch.rand(x.shape[:2]).argsort(1)[:, : x.shape[1] // 2]
        x = x.gather(1, kept[..., None].expand(-1, -1, D))
        x = x + 0.1 * torch.randn_like(x) if self.noisy else x
        for layer in self.layers:
            x = layer(x)
        return self.head(F.layer_norm(x, (D,)).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("noisy", "status"), [(False, "warn"), (True, "fail")])
def test_patches_may_be_hidden_at_random(noisy: bool, status: str) -> None:
    report = check(HidesPatches(noisy=noisy))
    assert [(one.id, one.status) for one in report.findings if one.check == "deterministic"] == [("T09", status)]
    assert report.verdict == "faulty" if noisy else report.verdict != "faulty", str(report)


class Reader(nn.Module):
    """One layer of latents that read a row."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(D), nn.LayerNorm(D)
        self.cross = nn.MultiheadAttention(D, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor, data: Tensor) -> Tensor:
        x = x + self.cross(self.norm(x), data, data)[0]
        return x + self.mlp(self.after(x))  # type: ignore[no-any-return]


class Latents(Pooled):
    """Every layer reads the row again, so none of them need carry it on (Jaegle et al. 2021)."""

    def __init__(self) -> None:
        super().__init__("")
        self.layers = nn.ModuleList(Reader() for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        data = self.patches(images).flatten(2).transpose(1, 2)  # (B, D, h, w) -> (B, h * w, D)
        x = self.first.expand(len(data), 4, -1)
        for layer in self.layers:
            x = layer(x, data)
        return self.head(x.mean(1))  # type: ignore[no-any-return]


def test_layers_that_each_read_the_row_need_not_carry_it_on() -> None:
    report = check(Latents(), only=["residuals"])
    assert not report.findings, str(report)
    assert next(one.status for one in report.checks if one.name == "residuals") == "pass"
