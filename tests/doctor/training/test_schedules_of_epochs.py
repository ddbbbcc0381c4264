"""A schedule that counts epochs and steps with each batch is over before it began; one that counts steps is not."""

from collections.abc import Callable
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    StepLR,
)
from torch.utils.data import DataLoader, TensorDataset

from clearhead import doctor

V, BATCHES = 11, 2_000
Make = Callable[[Optimizer], LRScheduler]
OF_EPOCHS: dict[str, Make] = {
    "exponential": lambda optimizer: ExponentialLR(optimizer, 0.95),
    "steps": lambda optimizer: StepLR(optimizer, 10, 0.5),
    "milestones": lambda optimizer: MultiStepLR(optimizer, [30, 60, 90]),
}
OF_STEPS: dict[str, Make] = {
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, BATCHES),
    "warm-up": lambda optimizer: LambdaLR(optimizer, lambda step: min((step + 1) ** -0.5, (step + 1) * 400**-1.5)),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.01, total_steps=150),
    "short and linear": lambda optimizer: LambdaLR(optimizer, lambda step: max(1e-3, 1 - step / 150)),
    "short polynomial": lambda optimizer: PolynomialLR(optimizer, 150),
    "slow": lambda optimizer: ExponentialLR(optimizer, 0.9999),
}


def trained(make: Make, *, each_batch: bool) -> tuple[doctor.Report, Optimizer, LRScheduler, dict[str, object]]:
    """Three steps of a training whose data has many batches; with the schedule's state before the report."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(V, 8), nn.Linear(8, V))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = make(optimizer)
    loader = DataLoader(TensorDataset(torch.randint(V, (BATCHES, 9))), batch_size=1)
    with doctor.watch(model, optimizer) as seen:
        for (ids,) in islice(loader, 3):
            step(model, optimizer, ids)
            if each_batch:
                scheduler.step()
        if not each_batch:
            scheduler.step()
    state = {"rate": optimizer.param_groups[0]["lr"], **scheduler.state_dict()}
    return seen.report(), optimizer, scheduler, state


def step(model: nn.Module, optimizer: Optimizer, ids: Tensor) -> None:
    model.zero_grad()
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@pytest.mark.parametrize("name", OF_EPOCHS)
def test_a_schedule_of_epochs_may_not_step_with_each_batch(name: str) -> None:
    report, optimizer, scheduler, state = trained(OF_EPOCHS[name], each_batch=True)
    assert report["O08"].status == "fail"
    assert "a tenth of the 2,000 batches" in report["O08"].evidence.witness
    assert {"rate": optimizer.param_groups[0]["lr"], **scheduler.state_dict()} == state
    assert "O08" not in trained(OF_EPOCHS[name], each_batch=False)[0]


@pytest.mark.parametrize("name", OF_STEPS)
def test_a_schedule_of_steps_may(name: str) -> None:
    report, optimizer, scheduler, state = trained(OF_STEPS[name], each_batch=True)
    assert "O08" not in report
    assert {"rate": optimizer.param_groups[0]["lr"], **scheduler.state_dict()} == state
