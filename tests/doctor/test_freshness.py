"""Whether weights are newly drawn is established before anything is said of a fresh model."""

from pathlib import Path

import pytest
import torch
from doctor_helpers import made, write
from torch import Tensor, nn

from clearhead.doctor import Spec, check
from clearhead.doctor.probes.freshness import freshness

LOUD = ("nn.init.normal_(p, std=0.02)", "nn.init.normal_(p, std=1.0)")


def test_norms_and_then_biases_tell_it() -> None:
    norm, plain = nn.LayerNorm(4), nn.Linear(4, 4)
    model = nn.Sequential(norm, plain)
    assert freshness(model) == (True, "no norm has learned anything")
    with torch.no_grad():
        norm.weight[0] += 1e-6
    assert freshness(model) == (False, "0.weight is not constant any more")
    assert freshness(plain)[0] is None
    nn.init.zeros_(plain.bias)
    assert freshness(plain) == (True, "no bias has learned anything")
    assert freshness(nn.Embedding(4, 4))[0] is None
    counting = nn.Sequential(nn.BatchNorm1d(4))
    assert freshness(counting)[0] is True
    counting(torch.randn(8, 4))
    assert freshness(counting) == (False, "0.num_batches_tracked has counted batches")


@pytest.mark.parametrize("declared", [True, False, None])
def test_the_loss_of_a_trained_model_is_its_own_unless_it_is_declared_fresh(
    declared: bool | None, tmp_path: Path
) -> None:
    model = made(write(tmp_path, "gpt", LOUD))
    assert "E04" in check(model, only=["E04"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("ln_f.weight"):
                parameter.add_(0.01 * torch.randn(parameter.shape))
    report = check(model, Spec(fresh=declared), only=["E04"])
    assert [finding.status for finding in report.findings] == (["warn"] if declared else [])
    assert report.verdict == ("partial" if declared else "unknown")


class Block(nn.Module):
    def __init__(self, *, norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8) if norm else nn.Identity()
        self.up, self.down = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(self.up(self.norm(x)).relu())
        return y


class HeadOnBody(nn.Module):
    """A body, and a new head with a norm and a bias of its own."""

    def __init__(self, *, norms: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(31, 8)
        self.blocks = nn.ModuleList(Block(norm=norms) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 31)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def train_the_norms(body: nn.Module) -> None:
    with torch.no_grad():
        for parameter in body.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape))


def test_a_frozen_trained_body_is_not_fresh_because_of_its_new_head() -> None:
    model = HeadOnBody(norms=True)
    assert freshness(model)[0] is True
    train_the_norms(model.blocks)
    model.blocks.requires_grad_(False)
    assert freshness(model) == (False, "blocks.0.norm.weight is not constant any more")
    with torch.no_grad():
        model.head.weight.mul_(100)  # what a fresh model may not have
    report = check(model, Spec(kind="causal"), only=["E04"])
    assert "E04" not in report
    assert [one.note for one in report.checks if one.name == "fresh loss"] == [freshness(model)[1]]


def test_a_head_says_nothing_of_a_body_that_shows_nothing() -> None:
    model = HeadOnBody(norms=False)
    assert freshness(model) == (None, "nothing shows whether most of the weights in its layers are newly drawn")
    one_of_two = HeadOnBody(norms=False)
    one_of_two.blocks[0] = Block(norm=True)
    assert freshness(one_of_two)[0] is True


@pytest.mark.parametrize("learns", [True, False])
def test_freezing_weights_makes_them_neither_fresh_nor_trained(learns: bool) -> None:
    fresh, trained = HeadOnBody(norms=True), HeadOnBody(norms=True)
    train_the_norms(trained)
    assert freshness(fresh.requires_grad_(learns))[0] is True
    assert freshness(trained.requires_grad_(learns))[0] is False
