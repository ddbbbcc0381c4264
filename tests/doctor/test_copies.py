"""The copies that are examined call themselves, whatever holds the functions that a model is made of."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from clearhead.doctor import check
from clearhead.doctor.state_guard import copied, perturbed


class Closing(nn.Module):
    """A model whose forward goes through a function over its own parts. `hold` keeps that function somewhere."""

    def __init__(self, hold: Callable[[nn.Module, Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(97, 16), nn.Linear(16, 97)
        self.feedforward = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 16))
        parts = self.feedforward
        self.through = hold(self, lambda x: x + parts(x))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        x: Tensor = self.head(self.through(self.embedding(ids)))
        return x


def _in_a_dict(model: nn.Module, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    functions = {"parts": [function]}
    return lambda x: functions["parts"][0](x)


def _in_a_hook(model: nn.Module, function: Callable[[Tensor], Tensor]) -> nn.Module:
    identity = nn.Identity()
    identity.register_forward_hook(lambda module, inputs, output: function(output))
    return identity


HOLDS = {
    "an attribute": lambda model, function: function,
    "a partial": lambda model, function: partial(lambda inner, x: inner(x), function),
    "a closure over a dict": _in_a_dict,
    "a hook": _in_a_hook,
}


@pytest.mark.parametrize("place", HOLDS)
def test_a_copy_calls_its_own_parts(place: str) -> None:
    torch.manual_seed(0)
    model, ids = Closing(HOLDS[place]), torch.arange(10).view(2, 5)
    before = model.eval()(ids)
    copy = copied(model)
    assert torch.equal(copy(ids), before)
    with torch.no_grad():
        for parameter in copy.get_submodule("feedforward").parameters():
            parameter.zero_()
    assert not torch.equal(copy(ids), before), "the copy still calls the original"
    assert torch.equal(model(ids), before), "the original calls the copy"
    assert not torch.equal(perturbed(model, 0)(ids), before)


@pytest.mark.parametrize("place", HOLDS)
def test_functions_over_parts_are_no_fault(place: str) -> None:
    torch.manual_seed(0)
    report = check(Closing(HOLDS[place]))
    assert not {finding.id for finding in report.findings} & {"A08", "A13", "I05"}, str(report)


def test_a_part_that_only_a_function_knows_is_told() -> None:
    torch.manual_seed(0)

    def hold(model: nn.Module, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        hidden = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
        return lambda x: function(hidden(x))

    assert "I05" in {finding.id for finding in check(Closing(hold)).findings}


class Settings(dict[str, object]):
    """Settings as many tutorials have them: every attribute is a key, and no other exists."""

    __getattr__ = dict.__getitem__


class Configured(Closing):
    def __init__(self) -> None:
        super().__init__(lambda model, function: function)
        self.config = Settings(width=16)
        self.every = [{"settings": self.config}]


def test_settings_that_refuse_to_be_copied_are_shared() -> None:
    model = Configured()
    copy = copied(model)
    assert vars(copy)["config"] is model.config
    assert vars(copy)["every"][0]["settings"] is model.config
    assert copy.head is not model.head
    assert check(model).verdict == "healthy"


class Computed(nn.Module):
    """It keeps a table that was computed from weights, with its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(97, 16), nn.Linear(16, 97)
        self.table = nn.Linear(3, 16)(torch.randn(64, 3))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding(ids) + self.table[: ids.shape[1]])  # type: ignore[no-any-return]


def test_a_tensor_with_a_graph_is_copied_without_it() -> None:
    model = Computed()
    model_copy = copied(model)
    ids = torch.randint(97, (2, 5))
    assert torch.equal(model_copy(ids), model(ids))
    assert model_copy.table is not model.table
