"""Several processes that share a training take the steps that one takes alone, with DDP and with FSDP."""

import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from process_helpers import run_processes
from process_models import TRANSLATOR, continued, first_gradient, gathered_weights, process_model, resumed
from torch import Tensor
from training_helpers import tiny_config

from clearhead.training import Processes, ProcessLostError, build_optimizer, checkpoints, lost_processes
from clearhead.training.sharding import is_shared_out, shard_of

STEPS = 50
TEXT = "käse" * 1000
MODELS: dict[str, dict[str, Any]] = {"language model": {}, "translator": TRANSLATOR}

Case = tuple[str, str, dict[str, Any]]  # how the processes share, the model, the options of the training
CASES: list[Case] = [
    ("ddp", "language model", {"optimizer": "adamw", "micro_batches": 3, "steps": 20}),
    ("ddp", "translator", {"optimizer": "muon", "micro_batches": 1, "steps": 10}),
    ("fsdp", "translator", {"optimizer": "muon", "micro_batches": 2, "steps": 5}),
]
MORE_CASES: list[Case] = [
    *(
        ("fsdp", name, {"optimizer": optimizer, "micro_batches": n, "recompute": recompute})
        for name in MODELS
        for optimizer in ("adamw", "muon", "sgd", "adam")
        for n, recompute in ((1, "none"), (2, "blocks"), (3, "none"))
    ),
    *(
        ("ddp", name, {"optimizer": optimizer, "micro_batches": n})
        for name in MODELS
        for optimizer in ("adamw", "muon")
        for n in (1, 2, 3)
    ),
]
MUON = {"optimizer": "muon", "steps": 3}
GRADIENTS = [  # and the rows of a batch; of one row, three of four processes have none
    ("ddp", "language model", 3),
    *((parallel, "translator", 1) for parallel in ("ddp", "fsdp")),
]
MORE_GRADIENTS = [(parallel, name, rows) for parallel in ("ddp", "fsdp") for name in MODELS for rows in (4, 3, 1)]


def results(cases: list[Case], gradients: list[tuple[str, str, int]], folder: Path) -> dict[str, Any]:
    """Everything that the tests below compare, in one start: starting a process takes longer than training in it."""
    return {
        "trained": [continued(process_model(p, MODELS[model]), {"steps": STEPS, **o}) for p, model, o in cases],
        "gradients": {
            str(key): first_gradient(process_model(key[0], MODELS[key[1]]), {"micro_batches": 2}, key[2])
            for key in gradients
        },
        "saved": resumed(folder, "fsdp", TRANSLATOR, MUON),
        "settled": settled(),
        "divided": divided(),
        "shares": shares(),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With checkpoints of what was saved by one process, by two and by four."""
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    return results(CASES, GRADIENTS, folder / "1")


@pytest.fixture(scope="module", params=[2, 4])
def shared(request: pytest.FixtureRequest, folder: Path) -> list[dict[str, Any]]:
    """Of each process."""
    return run_processes(results, request.param, CASES, GRADIENTS, folder / str(request.param), limit=240)


def compare_trainings(alone: dict[str, Any], shared: list[dict[str, Any]], cases: list[Case]) -> float:
    """Returns the largest difference of a loss or norm."""
    differences = [0.0]
    for index, case in enumerate(cases):
        expected, first = alone["trained"][index], shared[0]["trained"][index]
        torch.testing.assert_close(first["steps"], expected["steps"], rtol=0, atol=1e-5, msg=str(case))
        differences.append(float((first["steps"] - expected["steps"]).abs().max()))
        for process in shared:  # they stay replicas
            assert all(torch.equal(process["trained"][index][name], first[name]) for name in expected), case
    return max(differences)


def compare_gradients(alone: dict[str, Any], shared: list[dict[str, Any]]) -> float:
    """Returns the largest difference of a number."""
    differences = [0.0]
    for key, expected in alone["gradients"].items():
        for process in shared:
            gradients = process["gradients"][key]
            assert gradients.keys() == expected.keys()
            for name in expected:
                torch.testing.assert_close(gradients[name], expected[name], rtol=0, atol=1e-6, msg=f"{name}, {key}")
                differences.append(float((gradients[name] - expected[name]).abs().max()))
    return max(differences)


def test_losses_do_not_depend_on_the_number_of_processes(alone: dict[str, Any], shared: list[dict[str, Any]]) -> None:
    compare_trainings(alone, shared, CASES)


def test_a_gradient_is_that_of_the_whole_batch_also_where_a_process_has_no_rows(
    alone: dict[str, Any], shared: list[dict[str, Any]]
) -> None:
    compare_gradients(alone, shared)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", MODELS)
def test_no_combination_depends_on_the_number_of_processes(
    name: str, parallel: str, world_size: int, tmp_path: Path
) -> None:
    cases = [case for case in MORE_CASES if case[:2] == (parallel, name)]
    gradients = [case for case in MORE_GRADIENTS if case[:2] == (parallel, name)]
    expected = results(cases, gradients, tmp_path / "1")
    shared = run_processes(results, world_size, cases, gradients, tmp_path / "shared", limit=3000, timeout=600)
    apart = compare_trainings(expected, shared, cases), compare_gradients(expected, shared)
    print("{} cases, {} processes: loss or norm {:.1e}, gradient {:.1e}".format(len(cases), world_size, *apart))


def test_what_processes_save_is_what_they_hold(folder: Path, shared: list[dict[str, Any]]) -> None:
    checkpoint = checkpoints.newest(folder / str(len(shared)))
    assert checkpoint is not None
    model = process_model("ddp", TRANSLATOR, seed=9)
    optimizer = build_optimizer(model, tiny_config(**MUON))
    state = checkpoints.load(checkpoint.path, model, optimizer)
    assert state.step == MUON["steps"]
    expected = shared[0]["saved"]
    assert all(torch.equal(tensor, expected[name]) for name, tensor in gathered_weights(model).items())
    again = checkpoints.save(folder / f"again{len(shared)}", model, optimizer, state, keep=1)
    for name in (checkpoints.WEIGHTS, checkpoints.OPTIMIZER):  # and the moments are whole as well
        assert (again / name).read_bytes() == (checkpoint.path / name).read_bytes()


LINKS = {  # numbers of processes that take a training up in turn, and how they share
    "ddp": [(1, "ddp"), (2, "ddp"), (4, "ddp"), (1, "ddp")],
    "fsdp": [(1, "fsdp"), (2, "fsdp"), (4, "fsdp"), (1, "fsdp")],
    "both": [(1, "ddp"), (2, "fsdp"), (4, "fsdp"), (2, "ddp"), (1, "ddp")],
}


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("optimizer", "micro_batches", "recompute"),
    [("adamw", 1, "none"), ("adamw", 3, "blocks"), ("muon", 1, "blocks"), ("muon", 2, "none"), ("adam", 2, "none")],
)
def test_a_training_goes_on_with_any_number_of_processes(
    links: str, name: str, optimizer: str, micro_batches: int, recompute: str, tmp_path: Path
) -> None:
    options = {"optimizer": optimizer, "micro_batches": micro_batches, "recompute": recompute, "schedule": "constant"}
    losses, weights = [], dict[str, Tensor]()
    for link, (world_size, parallel) in enumerate(LINKS[links]):
        arguments = tmp_path / "shared", parallel, MODELS[name], {**options, "steps": 6 * (link + 1)}
        weights = run_processes(resumed, world_size, *arguments)[0]
        losses.append(weights.pop("steps"))
    alone = resumed(tmp_path / "alone", "ddp", MODELS[name], {**options, "steps": 6 * len(losses)})
    apart = {"loss or norm": float((torch.cat(losses) - alone.pop("steps")).abs().max())}
    apart["weight"] = max(float((tensor - alone[name]).abs().max()) for name, tensor in weights.items())
    equal = sum(torch.equal(tensor, alone[name]) for name, tensor in weights.items())
    print({what: f"{difference:.1e}" for what, difference in apart.items()}, f"{equal} of {len(weights)} equal")
    assert apart["loss or norm"] <= 1e-5
    assert apart["weight"] <= 1e-4  # not the same bytes: a sum of gradients has another order


def settled() -> tuple[list[int], str]:
    group = Processes.joined()
    return list(group.agree(group.rank, 7 * group.is_first)), group.from_first(TEXT if group.is_first else None)


def test_processes_agree_on_the_largest_number_and_on_what_the_first_one_says(
    alone: dict[str, Any], shared: list[dict[str, Any]]
) -> None:
    assert alone["settled"] == ([0, 7], TEXT)
    assert [process["settled"] for process in shared] == [([len(shared) - 1, 7], TEXT)] * len(shared)


def heard(seconds: float, behavior: str) -> str:
    """What the others hear of a first process that works for so long."""
    lost_processes.TIMEOUT = timedelta(seconds=1)
    group = Processes.joined()
    if not group.is_first:
        try:
            return group.from_first(None)
        except ProcessLostError as error:
            return f"{error.speaker}: {error}"
    if behavior == "hangs":
        time.sleep(seconds)
        return ""
    with suppress(ValueError), group.at_work():
        time.sleep(seconds)
        if behavior == "fails":
            raise ValueError
        group.from_first(TEXT)
    return ""


@pytest.mark.parametrize(
    ("seconds", "behavior", "expected"),
    [
        (2.5, "works", TEXT),
        (0.5, "fails", "0: the first process of this training failed"),
        (2.5, "hangs", "1: rank 0 of this training hangs: nothing came from it for 0.0167 minutes"),
    ],
)
def test_the_first_process_is_waited_for_as_long_as_it_works(seconds: float, behavior: str, expected: str) -> None:
    assert run_processes(heard, 2, seconds, behavior, limit=60)[1] == expected


def missed(late: int, seconds: float) -> str:
    """What is heard of rank 1, which does not come; another one comes late."""
    lost_processes.TIMEOUT = timedelta(seconds=20)  # a roll call takes a twentieth of it
    group = Processes.joined()
    with group.answering():
        time.sleep(10 if group.rank == 1 else seconds if group.rank == late else 0)
        if group.rank == 1:
            return ""
        with pytest.raises(ProcessLostError) as error:
            group.agree(1)
    return f"{error.value.speaker == group.rank}: {error.value}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("late", [0, 2])
def test_a_process_that_hangs_is_named_by_the_first_that_waits_for_it(late: int) -> None:
    sentences = run_processes(missed, 3, late, 3.0, limit=60, timeout=4)
    hangs = "rank 1 of this training hangs: nothing came from it for 0.333 minutes"
    assert sorted(sentences) == ["", f"False: {hangs}", f"True: {hangs}"]


def deserted() -> str:
    """What is heard of rank 0, which leaves without a sentence."""
    group = Processes.joined()
    group.agree(1)  # all are connected
    if group.is_first:
        dist.destroy_process_group()  # as the end of a process that is killed, it closes the connections
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        return ""
    with pytest.raises(ProcessLostError, match="another process of this training ended") as error:
        group.agree(1)
    return str(error.value.speaker)


def test_another_process_tells_that_the_first_was_killed() -> None:
    silent, *speakers = run_processes(deserted, 3, limit=60)
    assert not silent
    assert speakers in (["1", "1"], ["2", "2"])


def divided() -> dict[str, Tensor]:
    batches = [torch.arange(6.0 * n).view(n, 2, 3) for n in (1, 3, 8)]
    return {str(len(batch)): Processes.joined().divide(torch.exp, batch) for batch in batches}


def test_a_divided_computation_has_the_results_of_one(alone: dict[str, Any], shared: list[dict[str, Any]]) -> None:
    for process in shared:
        assert all(torch.equal(process["divided"][n], alone["divided"][n]) for n in alone["divided"])


def shares() -> dict[str, Any]:
    """Of a fresh model: the weights, and how many numbers of them this process holds."""
    model = process_model("fsdp", {"norm": "rmsnorm_plus_one", "positions": "sinusoidal"}, seed=3)
    held = {name: shard_of(p).numel() for name, p in model.named_parameters()}
    shared_out = [is_shared_out(p) for p in model.parameters()]
    return {"weights": gathered_weights(model), "held": held, "all": all(shared_out)}


def test_a_model_that_is_shared_out_has_the_weights_of_a_whole_one(
    alone: dict[str, Any], shared: list[dict[str, Any]]
) -> None:
    expected = alone["shares"]["weights"]
    for process in shared:
        weights = process["shares"]["weights"]
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in expected)
        assert process["shares"]["all"]
    for name, tensor in expected.items():
        counts = [process["shares"]["held"][name] for process in shared]
        assert sum(counts) == tensor.numel()
        assert max(counts) <= -(-len(tensor) // len(shared)) * (tensor.numel() // len(tensor))
