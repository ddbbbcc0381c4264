"""A dropout that a layer holds and never applies is found, however many others there are."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor import check


class Layer(nn.Module):
    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.map, self.dropout = nn.Linear(16, 16), nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.dropout(torch.tanh(self.map(x)))
        return x + update


class Forgets(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.map(x))


class DropsByFunction(Forgets):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), self.dropout.p, self.training)


class DropsInside(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return x + F.scaled_dot_product_attention(x, x, x, dropout_p=self.dropout.p if self.training else 0.0)


class LeavesOneOver(Layer):
    """A second one is a remnant."""

    def __init__(self) -> None:
        super().__init__()
        self.another = nn.Dropout(0.1)


class MayDrop(Layer):
    """Only where it is told to."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.dropout(torch.tanh(self.map(x))) if self.map.out_features < 0 else torch.tanh(self.map(x)))


class Model(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.words, self.layers, self.head = nn.Embedding(41, 16), nn.ModuleList([Layer(), layer]), nn.Linear(16, 41)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


@pytest.mark.parametrize("layer", [Layer(), DropsByFunction(), DropsInside(), LeavesOneOver(), MayDrop(), Forgets(0.0)])
def test_dropout_that_is_applied_is_no_fault(layer: nn.Module) -> None:
    report = check(Model(layer), only=["dropouts"])
    assert not report.findings, str(report)


def test_dropout_that_is_never_applied_is_found() -> None:
    (fault,) = check(Model(Forgets()), only=["dropouts"]).findings
    assert (fault.id, fault.status, fault.where.module) == ("T06", "warn", "layers.1")


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1)), "nn.Sequential, which apply what they hold"),
        (nn.TransformerEncoderLayer(16, 2, 32), "nn.Sequential, which apply what they hold"),
        (nn.Linear(16, 16), "it holds no dropout module"),
    ],
)
def test_what_a_library_applies_is_not_called_missing(layer: nn.Module, reason: str) -> None:
    model = Model(layer)
    model.layers[0] = nn.Linear(16, 16)
    (dropouts,) = (done for done in check(model, only=["dropouts"]).checks if done.name == "dropouts")
    assert dropouts.status == "skip"
    assert reason in dropouts.note
