"""A second input beside the tokens: a source, a number for each part of a row, or a token that the ids hold."""

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import Report, Spec, check

V, D = 97, 32


class Encoder(nn.Module):
    """BERT with its three inputs; subclasses name them."""

    def __init__(self, n_parts: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.positions, self.parts = nn.Embedding(V, D), nn.Embedding(64, D), nn.Embedding(n_parts, D)
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)
        layers = (nn.TransformerEncoderLayer(D, 4, 2 * D, batch_first=True) for _ in range(2))
        self.layers = nn.ModuleList(layers)

    def encode(self, x: Tensor, parts: Tensor, mask: Tensor | None) -> Tensor:
        x = self.norm(self.words(x) + self.positions.weight[: x.shape[1]] + self.parts(parts))
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=None if mask is None else mask == 0)
        return self.head(x)  # type: ignore[no-any-return]


class Short(Encoder):
    def forward(self, x: Tensor, seg: Tensor, mask: Tensor) -> Tensor:
        return self.encode(x, seg, mask)


class Unnamed(Encoder):
    def forward(self, x: Tensor, s: Tensor, mask: Tensor) -> Tensor:
        return self.encode(x, s, mask)


class OnesCompared(Encoder):
    """It compares a mask of its own with 0, and its tokens with nothing."""

    def forward(self, x: Tensor, which: Tensor) -> Tensor:
        return self.encode(x, which, torch.ones_like(x))


class Pair(Encoder):
    """Two rows of the same words: it may as well be a source and a target."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.encode(x, y % 2, None)


def ids_of(report: Report) -> set[str]:
    return {finding.id for finding in report.findings}


@pytest.mark.parametrize("model", [Short(), Unnamed(), OnesCompared()], ids=lambda model: type(model).__name__)
def test_numbers_of_parts_are_no_target(model: nn.Module) -> None:
    report = check(model)
    assert report.verdict == "healthy", str(report)
    assert report.kind == "bidirectional"
    assert "zeros like ids" in report.paths[0]


@pytest.mark.parametrize("kind", ["bidirectional", "causal"])
def test_a_declared_kind_has_no_source(kind: str) -> None:
    report = check(Pair(), Spec(kind=kind))  # type: ignore[arg-type]
    assert "source" not in report.paths[0], str(report)
    assert ("M01" in ids_of(report)) == (kind == "causal")


class Lengths(Encoder):
    """It takes the number of its words and has no use for it."""

    def forward(self, text: Tensor, words_per_sentence: Tensor) -> Tensor:
        return self.encode(text, torch.zeros_like(text), None)


class Deaf(Encoder):
    def forward(self, text: Tensor, memory: Tensor) -> Tensor:
        return self.encode(text, torch.zeros_like(text), None)


def test_an_input_without_effect_is_a_source_that_is_not_read_only_if_something_says_that_it_is_one() -> None:
    assert "S02" not in check(Lengths(), only=["S02"])
    assert check(Deaf(), only=["S02"])["S02"].status == "fail"
