"""Whether weights are newly drawn is established before anything is said of a fresh model."""

from pathlib import Path

import pytest
import torch
from doctor_helpers import made, write
from torch import nn

from clearhead.doctor import Spec, check
from clearhead.doctor.instruments.freshness import freshness

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
