"""The adapter that a refusal proposes takes what the model's layers read, and works once its line is changed."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import check
from clearhead.doctor.calling.adapters import adapter_for
from clearhead.errors import DataError


class Reader(nn.Module):
    """Nobody guesses its call: it asks for a number that stands nowhere."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.read: nn.Module = nn.Linear(7, 16)
        if kind != "numbers":
            self.read = nn.Embedding(29, 16) if kind == "ids" else nn.Conv2d(3, 16, 8, 8)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, *, given: Any, scale: float) -> Tensor:
        assert scale == 1.5
        states = self.read(given["it"])
        states = states.flatten(2).transpose(1, 2) if states.dim() == 4 else states
        return self.head(self.mix(states).tanh().mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["ids", "pictures", "numbers"])
def test_it_takes_what_the_model_reads_and_works(kind: str) -> None:
    below = adapter_for(Reader(kind))
    assert f"def forward(self, {kind}):" in below
    changed = below.replace(f"self.model({kind})", f"self.model(given={{'it': {kind}}}, scale=1.5)")
    names: dict[str, Any] = {"torch": torch, "build": lambda: Reader(kind)}
    exec(changed, names)
    assert check(names["adapted"](), only=("A08",)).verdict == "partial", "nothing failed, and it was called"


def test_a_refusal_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearhead.doctor.calling.climbing.CALLS", 2)
    with pytest.raises(DataError, match="no way was found to call Reader") as told:
        check(Reader("pictures"))
    assert str(told.value).endswith(adapter_for(Reader("pictures")))
