"""Faults that stand behind another, or in a path that was not called; and what only looks like one."""

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import check

V, D, LONGEST = 41, 32, 64


def sinusoids() -> Tensor:
    angles = torch.arange(LONGEST)[:, None] * 10_000.0 ** (-torch.arange(0, D, 2) / D)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)


class Signal(nn.Module):
    """A series of signals (B, T, 8), time first if `crosses`, with a table cut by rows if `counts_rows`."""

    pe: Tensor

    def __init__(self, crosses: bool, counts_rows: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.counts_rows = counts_rows
        self.embed, self.head = nn.Linear(8, D), nn.Linear(D, 3)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, batch_first=not crosses)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.register_buffer("pe", sinusoids()[:, None])

    def forward(self, signal: Tensor) -> Tensor:
        x = self.embed(signal)
        x = x + (self.pe[: len(x)] if self.counts_rows else self.pe[: x.shape[1]].transpose(0, 1))
        logits: Tensor = self.head(self.encoder(x).mean(1))
        return logits


@pytest.mark.parametrize(
    ("crosses", "counts_rows", "found"),
    [(True, True, {"A10", "P02"}), (True, False, {"A10"}), (False, True, {"P02"}), (False, False, set())],
)
def test_a_fault_behind_another_is_told(crosses: bool, counts_rows: bool, found: set[str]) -> None:
    report = check(Signal(crosses, counts_rows), only=["A10"])
    assert {finding.id for finding in report.findings if finding.status == "fail"} == found


class Queries(nn.Module):
    """Latents read a source, and queries read the latents, each by itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.latents = nn.Parameter(torch.randn(1, 16, D))
        self.read, self.think, self.ask = (nn.MultiheadAttention(D, 4, batch_first=True) for _ in range(3))
        self.head = nn.Linear(D, D)

    def forward(self, inputs: Tensor, query: Tensor) -> Tensor:
        x = self.read(self.latents.expand(len(inputs), -1, -1), inputs, inputs)[0]
        x = x + self.think(x, x, x)[0]
        return self.head(query + self.ask(query, x, x)[0])  # type: ignore[no-any-return]


def test_queries_to_a_source_need_not_meet() -> None:
    report = check(Queries(), only=["M01", "A10"])
    assert not report.findings
    assert "with time first" not in report.paths[0]


class Drowned(nn.Module):
    pe: Tensor

    def __init__(self, factor: float, deviation: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.norm, self.head, self.factor = nn.Embedding(V, D), nn.LayerNorm(D), nn.Linear(D, V), factor
        nn.init.normal_(self.words.weight, std=deviation)
        self.register_buffer("pe", sinusoids())

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) * self.factor + self.pe[: ids.shape[1]]
        return self.head(self.norm(x.cumsum(1)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("factor", "deviation", "found"),
    [
        (D**-0.5, 1.0, ["warn"]),
        (D**0.5, 1.0, ["warn"]),
        (D**0.5, D**-0.5, []),
        (0.1, 1.0, ["warn"]),
        (1.0, 1.0, []),
    ],
)
def test_tokens_are_as_large_as_their_positions(factor: float, deviation: float, found: list[str]) -> None:
    findings = check(Drowned(factor, deviation), only=["E03"]).findings
    assert [finding.status for finding in findings if finding.id == "E03"] == found


class Lists(nn.Module):
    """A list of layers that only another path calls."""

    def __init__(self, layers: list[nn.Module], registers: bool = False, keeps: bool = True) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.layers = layers
        for layer in layers:
            layer.requires_grad_(keeps)
        if registers:
            self.held = nn.ModuleList(layers)

    def encode(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).cumsum(1))  # type: ignore[no-any-return]


def layers(number: int) -> list[nn.Module]:
    return [nn.Linear(D, D) for _ in range(number)]


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (Lists(layers(2)), ["I05"]),
        (Lists(layers(2), registers=True), []),
        (Lists(layers(2), keeps=False), []),  # a teacher that is not trained
        (Lists(layers(1)), []),
    ],
)
def test_layers_in_a_plain_list_that_are_not_called(model: nn.Module, found: list[str]) -> None:
    assert [finding.id for finding in check(model, only=["I05"]).findings if finding.id == "I05"] == found
