"""Several processes that share a training take the steps that one takes alone."""

from typing import Any

import pytest
import torch
from process_helpers import run_processes
from torch import Tensor
from training_helpers import start, tiny_batch, tiny_config

from clearhead.training import Processes, Stepped, fit
from clearhead.training.checkpoints import named_tensors
from clearhead.training.loss import counted_tokens
from clearhead.training.train_step import TrainStep

STEPS = 50
TEXT = "käse" * 1000


def trained(options: dict[str, Any]) -> dict[str, Tensor]:
    """The losses of every step, and the weights at the end."""
    config = tiny_config(steps=STEPS, **options)
    model, optimizer, state = start(config, dropout=0.0)
    events = fit(model, config, tiny_batch, optimizer=optimizer, state=state)
    losses = [event.loss for event in events if isinstance(event, Stepped)]
    return {"losses": torch.tensor(losses, dtype=torch.float64), **named_tensors(model)}


def first_gradient(options: dict[str, Any], rows: int) -> dict[str, Tensor]:
    config = tiny_config(**options)
    model, _, _ = start(config, dropout=0.0)
    batch = tuple(tensor[:rows] for tensor in tiny_batch(3))
    TrainStep(model, config).gradient(batch, tokens=counted_tokens(batch[-1]), seed=1, step=0)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


CASES = [{"optimizer": name, "micro_batches": parts} for name in ("adamw", "muon") for parts in (1, 2, 3)]
ROWS = (4, 3, 1)  # in a batch; of one row, three of four processes have none


def results() -> dict[str, Any]:
    """Everything that the tests below compare, in one start: starting a process takes longer than training in it."""
    return {
        "trained": [trained(case) for case in CASES],
        "gradients": [first_gradient({}, rows) for rows in ROWS],
        "settled": settled(),
    }


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return results()


@pytest.fixture(scope="module", params=[2, 4])
def shared(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Of each process."""
    return run_processes(results, request.param)


def test_losses_do_not_depend_on_the_number_of_processes(alone: dict[str, Any], shared: list[dict[str, Any]]) -> None:
    for index, case in enumerate(CASES):
        expected, first = alone["trained"][index], shared[0]["trained"][index]
        torch.testing.assert_close(first["losses"], expected["losses"], rtol=0, atol=1e-5, msg=str(case))
        for process in shared:  # they stay replicas
            assert all(torch.equal(process["trained"][index][name], first[name]) for name in expected), case


def test_a_gradient_is_that_of_the_whole_batch_also_where_a_process_has_no_rows(
    alone: dict[str, Any], shared: list[dict[str, Any]]
) -> None:
    for index, rows in enumerate(ROWS):
        expected = alone["gradients"][index]
        for process in shared:
            gradients = process["gradients"][index]
            assert gradients.keys() == expected.keys()
            for name in expected:
                torch.testing.assert_close(gradients[name], expected[name], rtol=0, atol=1e-6, msg=f"{name}, {rows}")


def settled() -> tuple[list[int], str]:
    group = Processes.joined()
    return list(group.agree(group.rank, 7 * group.is_first)), group.from_first(TEXT if group.is_first else None)


def test_processes_agree_on_the_largest_number_and_on_what_the_first_one_says(
    alone: dict[str, Any], shared: list[dict[str, Any]]
) -> None:
    assert alone["settled"] == ([0, 7], TEXT)
    assert [process["settled"] for process in shared] == [([len(shared) - 1, 7], TEXT)] * len(shared)
