"""Where a model is examined: elsewhere than on the CPU all is moved there and back, and rounding is no fault."""

from pathlib import Path
from typing import Any

import pytest
import torch
from doctor_helpers import made, write
from far_helpers import THERE, Far, far_device
from torch import nn

from clearhead.doctor import Report, check, examination
from clearhead.doctor.load.devices import find_device
from clearhead.errors import DataError, UsageError

ON_ITS_DEVICE = ("torch.arange(T)", "torch.arange(T, device=idx.device)")


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examinations on an accelerator are made on the device that is none."""
    monkeypatch.setattr(examination, "find_device", lambda name: torch.device("cpu") if name == "cpu" else THERE)


def check_far(model: nn.Module, **more: Any) -> Report:
    with far_device():  # type: ignore[no-untyped-call]
        return check(model, device="mps", **more)


def test_the_device_that_is_none_refuses_mixtures() -> None:
    with far_device():  # type: ignore[no-untyped-call]
        there = torch.ones(2).to(THERE)
        assert isinstance(there, Far)
        assert there.device == THERE
        assert type((there + 1).cpu()) is torch.Tensor
        assert torch.arange(3, device=THERE).device == THERE
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.ones(2)


@pytest.mark.campaign
def test_a_model_that_forgets_the_device_cannot_be_called(far: None, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="same device"):
        check_far(made(write(tmp_path, "gpt")))


HOSTS = {  # what makes a tensor makes it where its inputs are
    "llama that sees the next token": [
        ("torch.arange(0, K, 2).float()", "torch.arange(0, K, 2, device=positions.device).float()"),
        ("torch.arange(start, start + T)", "torch.arange(start, start + T, device=x.device)"),
        ("torch.ones(T, L, dtype=torch.bool)", "torch.ones(T, L, dtype=torch.bool, device=x.device)"),
        (".tril(L - T)", ".tril(L - T + 1)"),
    ],
    "translator": [("torch.ones(T, T)", "torch.ones(T, T, device=tgt.device)")],
    "gpt with a norm over time": [ON_ITS_DEVICE, ("self.ln1 = nn.LayerNorm(D)", "self.ln1 = TimeNorm()")],
}
FAULTS = {"llama that sees the next token": ["M06"], "gpt with a norm over time": ["N01"]}


@pytest.mark.campaign
@pytest.mark.parametrize("host", HOSTS)
def test_everything_is_moved_there_and_back(host: str, far: None, tmp_path: Path) -> None:
    model = made(write(tmp_path, host.split()[0], *HOSTS[host]))
    batch = torch.arange(5, 25).view(2, 10)
    given = (batch, batch) if host == "translator" else batch
    here = check(model, batch=given)
    report = check_far(model, batch=given)
    assert [(one.name, one.status, one.note) for one in report.checks] == [
        (one.name, one.status, one.note) for one in here.checks
    ]
    assert not [one for one in report.checks if "could not be made" in one.note], str(report)
    assert [one.id for one in report.findings] == FAULTS.get(host, [])
    assert [(one.where, one.picture, one.causes) for one in report.findings] == [
        (one.where, one.picture, one.causes) for one in here.findings
    ]
    assert report.paths[1] == "eval(), float32, MPS"


@pytest.mark.parametrize(("name", "error"), [
    ("tpu", UsageError), ("", UsageError), ("cuda:", UsageError), ("cpu:1", UsageError), ("meta", UsageError),
    ("cuda:99", DataError),
])  # fmt: skip
def test_a_device_that_is_not_there_gets_a_sentence(name: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="is none of cpu" if error is UsageError else "torch sees no cuda:99 here"):
        find_device(name)
    assert find_device("cpu") == torch.device("cpu")


@pytest.mark.campaign
def test_rounding_of_an_accelerator_is_measured_and_is_no_fault(far: None, tmp_path: Path) -> None:
    rounding = ("            return logits, None", "            return logits + 1e-8 * torch.randn_like(logits), None")
    model = made(write(tmp_path, "gpt", ON_ITS_DEVICE, rounding))
    assert check(model, only=["A08"])["T09"].status == "fail"
    far_away = {one.name: one.status for one in check_far(model, only=["M01"]).checks}
    assert far_away["deterministic"] == far_away["dependencies"] == "pass"
    loud = made(write(tmp_path, "gpt", ON_ITS_DEVICE, (rounding[0], rounding[1].replace("1e-8", "1e-2"))))
    assert check_far(loud, only=["A08"]).verdict == "faulty"
