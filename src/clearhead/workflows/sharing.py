"""A training on several processes: the first one plans, writes and prints; the others follow it step by step."""

import json
import math
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import torch

from clearhead.config import RunConfig
from clearhead.doctor import PreflightReport
from clearhead.errors import DataError, InterruptedRunError, UsageError
from clearhead.inference import Evaluation
from clearhead.inspection import estimate_cost
from clearhead.models import LanguageModel, build_model
from clearhead.options import option
from clearhead.training import (
    Evaluated,
    Event,
    Optimizer,
    Processes,
    ProcessLostError,
    SaveDue,
    TrainingState,
    build_optimizer,
    build_sharded,
    checkpoints,
    fit,
    gathered,
    is_sharded,
    join_processes,
)
from clearhead.workflows.budget import Budget
from clearhead.workflows.hardware import choose_device, threads
from clearhead.workflows.run import Run
from clearhead.workflows.runs.find import all_runs
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.signals import interruptible, interruptible_batches
from clearhead.workflows.tasks import Task

P = ParamSpec("P")


def shared(verb: Callable[P, Run]) -> Callable[P, Run]:
    """A verb that torchrun may start in several processes: the first one runs it, the others follow its training."""

    @wraps(verb)
    def in_processes(*args: P.args, **kwargs: P.kwargs) -> Run:
        with join_processes() as group:
            return verb(*args, **kwargs) if group.is_first else Run(follow(group).folder)

    return in_processes


def shares_weights(config: RunConfig) -> bool:
    """Whether the processes share the weights out, as `train.parallel` says.

    Raises:
        UsageError: the mean of checkpoints is asked for, which needs whole weights.
    """
    train, device = config.train, choose_device(config.train.device)
    if Processes.joined().world_size == 1 or train.parallel == "ddp":
        return False
    if train.parallel == "auto":
        held = estimate_cost(config.model, train).bytes
        least = held["weights"] + held["gradients"] + held["optimizer"]
        if device.type != "cuda" or least <= torch.cuda.mem_get_info(device)[0]:
            return False
    if train.average_checkpoints > 1:
        raise UsageError(f"weights that are shared out are not averaged; set {option('train.average_checkpoints', 1)}")
    return True


def build(config: RunConfig, *, sharded: bool) -> LanguageModel:
    """The fresh model on its device: whole, or this process's share of it."""
    device = choose_device(config.train.device)
    if sharded:
        return build_sharded(config.model, device, seed=config.seed)
    return build_model(config.model, seed=config.seed).to(device)


def preflight_apart(task: Task, config: RunConfig) -> PreflightReport:
    """The preflight where no process has the whole model: of one with the same options, at most two blocks deep."""
    depth = {name: min(2, getattr(config.model, name)) for name in ("n_layers", "n_encoder_layers")}
    shallow = config.model_copy(update={"model": config.model.model_copy(update=depth)})
    model = build(shallow, sharded=False)
    return task.preflight(model, build_optimizer(model, config.train), shallow)


def lead(
    run: RunFolder,
    config: RunConfig | None,
    state: TrainingState | None = None,
    *,
    is_timed: bool = False,
    sharded: bool = False,
) -> None:
    """Tell the other processes what is trained, once the run's folder says how. No config: there is nothing to do."""
    group = Processes.joined()
    if group.world_size == 1:
        return
    work: dict[str, Any] = {"run": str(run.folder), "config": None if config is None else config.model_dump()}
    path = None if state is None else checkpoints.path_of(run.checkpoints, state.step)
    work |= {"checkpoint": str(path) if path and path.is_dir() else None, "is_timed": is_timed, "sharded": sharded}
    group.from_first(json.dumps(work))


def follow(group: Processes) -> RunFolder:
    """Take every step of the first process's training; write and show nothing.

    Raises:
        SystemExit: the training was stopped, or another process was lost, which that process has told.
    """
    try:
        work: dict[str, Any] = json.loads(group.from_first(None))
        run = RunFolder(Path(work["run"]))
        if work["config"] is None:
            return run
        config, task = RunConfig.read(work["config"]), run.task()
        model = build(config, sharded=work["sharded"])
        optimizer = build_optimizer(model, config.train)
        resumed = work["checkpoint"] is not None
        state = checkpoints.load(Path(work["checkpoint"]), model, optimizer) if resumed else TrainingState()
        with interruptible() as interrupted, threads(config.train.threads):
            events = fit(
                model,  # its weights come from the first process
                config.train,
                interruptible_batches(interrupted, task.batches(config), run.stop_file, group),
                seed=config.seed,
                optimizer=optimizer,
                state=state,
                evaluate=lambda: evaluate(task, model, config, group),
                body=task.body(model),
                steps=planned(group, None) if work["is_timed"] else None,
            )
            for event in events:
                if is_sharded(model):
                    take_part(event, run, task, model, optimizer)
    except KeyboardInterrupt:
        raise SystemExit(InterruptedRunError.exit_code) from None
    except ProcessLostError as error:
        raise SystemExit(error.exit_code) from None
    return run


def take_part(event: Event, run: RunFolder, task: Task, model: LanguageModel, optimizer: Optimizer) -> None:
    """Compute and send what the first process needs of this one's weights to sample and to save."""
    if isinstance(event, Evaluated) and math.isfinite(event.loss):
        with gathered(model):
            task.example(model)
    elif isinstance(event, SaveDue):
        checkpoints.save(run.checkpoints, model, optimizer, event.state, keep=1)


def planned(group: Processes, budget: Budget | None) -> Callable[[int], int]:
    """The number of steps, before each of them: the first process's budget decides for all."""
    return lambda step: group.agree(0 if budget is None else budget.steps(step))[0]


def evaluate(task: Task, model: LanguageModel, config: RunConfig, group: Processes) -> Evaluation:
    """The loss on what is held out, of which each process reads every so manieth batch."""
    if group.world_size == 1:
        return task.evaluate(model, config)
    try:
        with gathered(model):
            share = task.evaluate(model, config, rank=group.rank, world_size=group.world_size)
    except DataError:  # there are fewer batches than processes
        share = Evaluation(0.0, 0)
    loss, tokens = group.sum(torch.tensor([share.loss * share.tokens, share.tokens], dtype=torch.float64)).tolist()
    return Evaluation(loss / tokens, int(tokens))


def started_before(folder: Path | None) -> RunFolder | None:
    """The run that these processes were training when one of them died, after which torchrun started them again."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0:
        return None
    runs = all_runs() if folder is None else [RunFolder(folder)]
    return next((run for run in runs if run.has_begun and _last_launcher(run) == os.getppid()), None)


def _last_launcher(run: RunFolder) -> object:
    launchers = [record.get("launcher") for record in run.records() if record["kind"] == "start"]
    return launchers[-1] if launchers else None
