"""Parts of a model that do not let themselves be read: what cannot be read is passed over, and a check goes on."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from causal_helpers import CausalModel
from torch import Tensor, nn

from clearhead import doctor


@dataclass
class Ambiguous:
    """A config that refuses to say of the whole model what is said for each layer."""

    head_dim: int = 8

    def __getattribute__(self, name: str) -> Any:
        if name == "head_dim":
            raise RuntimeError("it differs from layer to layer")
        return super().__getattribute__(name)


class Configured(CausalModel):
    def __init__(self) -> None:
        super().__init__()
        self.settings = Ambiguous()


class Vectorized(CausalModel):
    """Adds numbers up inside a vectorized map, where no tensor can be copied."""

    def forward(self, ids: Tensor) -> Any:
        ahead = torch.vmap(lambda position: torch.arange(ids.shape[1]) + position)(torch.zeros(2))
        return self.head(self.hidden(ids)) + 0 * ahead.sum()


@pytest.mark.parametrize("kind", [Configured, Vectorized])
def test_what_cannot_be_read_breaks_no_check(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    report = doctor.check(kind(), only=["storage", "embeddings"])
    assert not [check for check in report.checks if check.broke], str(report)
