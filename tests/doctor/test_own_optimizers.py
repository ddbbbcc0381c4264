"""The optimizer that a model makes for itself is held to what its own code says that it spares."""

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import check


class Sparing(nn.Module):
    """A healthy model that spares biases and norms by name; what others do is in the classes below."""

    spared = ("bias", "norm.weight")

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.norm, self.head = nn.Embedding(41, 16), nn.LayerNorm(16), nn.Linear(16, 41)
        self.maps = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for linear in self.maps:
            x = x + torch.tanh(linear(x))
        logits: Tensor = self.head(self.norm(x))
        return logits

    def configure_optimizers(self, weight_decay: float, learning_rate: float) -> object:
        spared = ["bias", "norm.weight"]
        return self.optimizer(spared, weight_decay, learning_rate)

    def optimizer(self, spared: list[str], decay: float, rate: float) -> torch.optim.Optimizer:
        named = [(any(word in name for word in spared), p) for name, p in self.named_parameters()]
        groups = [{"params": [p for s, p in named if s == is_spared]} for is_spared in (False, True)]
        groups[0]["weight_decay"], groups[1]["weight_decay"] = decay, 0.0  # type: ignore[assignment]
        return torch.optim.AdamW(groups, lr=rate)


class ByItsAxes(Sparing):
    def configure_optimizers(self, train_config: object) -> object:  # type: ignore[override]
        matrices = [p for p in self.parameters() if p.dim() > 1]
        vectors = [p for p in self.parameters() if p.dim() < 2]
        return [torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0}])]


class BiasesAlone(Sparing):
    def configure_optimizers(self, weight_decay: float, learning_rate: float) -> object:
        return self.optimizer(["bias"], weight_decay, learning_rate)


class OfAPart(Sparing):
    def configure_optimizers(self, learning_rate: float) -> object:  # type: ignore[override]
        return torch.optim.AdamW(self.head.parameters(), lr=learning_rate)


class OfOtherNames(Sparing):
    def configure_optimizers(self, weight_decay: float, learning_rate: float) -> object:
        no_decay = ["bias", "LayerNorm.weight"]
        return self.optimizer(no_decay, weight_decay, learning_rate)


class Forgetful(Sparing):
    def configure_optimizers(self, learning_rate: float) -> object:  # type: ignore[override]
        parameters = [p for name, p in self.named_parameters() if name != "norm.weight"]
        return {"optimizer": torch.optim.AdamW(parameters, lr=learning_rate)}


@pytest.mark.parametrize(
    ("kind", "id"),
    [
        (Sparing, None),
        (ByItsAxes, None),
        (BiasesAlone, None),
        (OfAPart, None),
        (OfOtherNames, "O03"),
        (Forgetful, "O01"),
    ],
)
def test_what_a_model_spares_from_decay(kind: type[Sparing], id: str | None) -> None:
    report = check(kind(), only=["optimizers"])
    assert [finding.id for finding in report.findings] == ([id] if id else []), str(report)
    assert next(one.status for one in report.checks) == ("fail" if id else "pass")
