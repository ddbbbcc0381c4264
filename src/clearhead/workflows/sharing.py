"""A training on several processes: the first one plans, writes and prints; the others follow it step by step."""

import json
import math
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import torch

from clearhead.config import RunConfig
from clearhead.doctor import PreflightReport
from clearhead.errors import DataError, InterruptedRunError, SilentExit, UsageError
from clearhead.inference import Evaluation, NothingToEvaluateError
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
    launchers,
)
from clearhead.workflows.budget import Budget
from clearhead.workflows.hardware import choose_device, enough_memory, threads
from clearhead.workflows.pretrained import Pretrained
from clearhead.workflows.run import Run
from clearhead.workflows.runs.find import all_runs
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.signals import Interruption, interruptible, interruptible_batches
from clearhead.workflows.tasks import Task

LESS_MEMORY = "lower `train.batch_size`, `model.block_size` or `model.d_model`, or raise `train.micro_batches`"

P = ParamSpec("P")


def shared(verb: Callable[P, Run]) -> Callable[P, Run]:
    """A verb that torchrun may start in several processes: the first one runs it, the others follow its training."""

    @wraps(verb)
    def in_processes(*args: P.args, **kwargs: P.kwargs) -> Run:
        with join_processes() as group, telling_once(group), enough_memory(LESS_MEMORY):
            if not group.is_first:
                return Run(follow(group).folder)
            with group.at_work():
                return verb(*args, **kwargs)

    return in_processes


@contextmanager
def telling_once(group: Processes) -> Iterator[None]:
    """One process tells why all end: the one that fails, or the first that loses one which was killed or hangs.

    Raises:
        ProcessLostError: this one is to tell that another was lost.
        SilentExit: another process tells it.
    """
    try:
        with group.answering():
            yield
    except ProcessLostError as error:
        if error.speaker == group.rank:
            raise
        raise SilentExit(error.exit_code, str(error)) from None
    except Exception:
        group.speaker()
        raise


def shares_weights(config: RunConfig) -> bool:
    """Whether the processes share the weights out, as `train.parallel` says.

    Raises:
        UsageError: the mean of checkpoints, or compiled code, is asked for, which needs whole weights.
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
    if train.compile == "on":
        raise UsageError(f"a model whose weights are shared out is not compiled; set {option('train.compile', 'off')}")
    return True


@dataclass(frozen=True)
class Training:
    """What every process of a training has alike: where it is recorded, its options, its data, and how far it is."""

    run: RunFolder
    config: RunConfig
    task: Task
    model: LanguageModel
    optimizer: Optimizer
    state: TrainingState

    def events(self, interrupted: Interruption, steps: Callable[[int], int] | None) -> Iterator[Event]:
        """The loop, of which each process takes its part until all stop before the same step.

        Args:
            interrupted: a request to stop.
            steps: as in `fit`.
        """
        group, config, task, model = Processes.joined(), self.config, self.task, self.model
        return fit(
            model,
            config.train,
            interruptible_batches(interrupted, task.batches(config), self.run.stop_file, group),
            seed=config.seed,
            optimizer=self.optimizer,
            state=self.state,
            evaluate=lambda: evaluate(task, model, config, group),
            body=task.body(model),
            steps=steps,
        )

    def preflight(self, *, fresh: bool) -> PreflightReport:
        """The preflight. Where no process has the whole model, of one with its options, at most two blocks deep."""
        if not is_sharded(self.model):
            return self.task.preflight(self.model, self.optimizer, self.config, fresh=fresh)
        depth = {name: min(2, getattr(self.config.model, name)) for name in ("n_layers", "n_encoder_layers")}
        shallow = self.config.model_copy(update={"model": self.config.model.model_copy(update=depth)})
        model = build_model(shallow.model, seed=shallow.seed).to(self.model.device)
        return self.task.preflight(model, build_optimizer(model, shallow.train), shallow)

    def save_trained(self, pretrained: Pretrained) -> None:
        """The trained model as the first checkpoint, from which each process takes what it holds of it."""
        if not is_sharded(self.model):
            self._save_first(self.model, self.optimizer)
            return
        whole = pretrained.model_for(self.config.model)
        path = self._save_first(whole, build_optimizer(whole, self.config.train))
        checkpoints.load(path, self.model, self.optimizer)

    def _save_first(self, model: LanguageModel, optimizer: Optimizer) -> Path:
        keep = self.config.train.keep_checkpoints
        return checkpoints.save(self.run.checkpoints, model, optimizer, self.state, keep=keep)


def build(config: RunConfig, pretrained: Pretrained | None, *, sharded: bool) -> LanguageModel:
    """The model on its device: fresh, or the trained one; of a fresh one that is shared out, this process's share."""
    device = choose_device(config.train.device)
    if sharded:
        return build_sharded(config.model, device, seed=config.seed)
    model = build_model(config.model, seed=config.seed) if pretrained is None else pretrained.model_for(config.model)
    return model.to(device)


def lead(training: Training, *, is_timed: bool = False) -> None:
    """Tell the other processes what is trained, once the run's folder says how."""
    path = checkpoints.path_of(training.run.checkpoints, training.state.step)
    _send(
        training.run,
        config=training.config.model_dump(),
        checkpoint=str(path) if path.is_dir() else None,
        is_timed=is_timed,
        sharded=is_sharded(training.model),
    )


def dismiss(run: RunFolder) -> None:
    """Tell the other processes that there is nothing to do."""
    _send(run, config=None)


def release(run: RunFolder) -> None:
    """Let the other processes go, once the run is written: their caller may read it."""
    _send(run)


def _send(run: RunFolder, **work: object) -> None:
    group = Processes.joined()
    if group.world_size > 1:
        group.from_first(json.dumps({"run": str(run.folder), **work}))


def follow(group: Processes) -> RunFolder:
    """Take every step of the first process's training; write and show nothing.

    Raises:
        ProcessLostError: another process was lost.
        SilentExit: the training was stopped, which the first process tells.
    """
    try:
        work: dict[str, Any] = json.loads(group.from_first(None))
        run = RunFolder(Path(work["run"]))
        if work["config"] is None:
            return run
        config, task = RunConfig.read(work["config"]), _task_of(run)
        model = build(config, None, sharded=work["sharded"])  # its weights come from the first process
        optimizer = build_optimizer(model, config.train)
        resumed = work["checkpoint"] is not None
        state = checkpoints.load(Path(work["checkpoint"]), model, optimizer) if resumed else TrainingState()
        training = Training(run, config, task, model, optimizer, state)
        with interruptible() as interrupted, threads(config.train.threads):
            for event in training.events(interrupted, planned(group, None) if work["is_timed"] else None):
                if is_sharded(model):
                    take_part(event, training)
        group.from_first(None)
    except KeyboardInterrupt:
        raise SilentExit(InterruptedRunError.exit_code) from None
    return run


def _task_of(run: RunFolder) -> Task:
    """The run's task as the first process sees it.

    Raises:
        DataError: this machine does not see the run.
    """
    if not run.has_begun:
        raise DataError(
            f"process {Processes.joined().rank} on {platform.node()} does not see the run {run.folder.resolve()}; "
            "machines that train together share the folder that they are started in, and the cache"
        )
    return run.task()


def take_part(event: Event, training: Training) -> None:
    """Compute and send what the first process needs of this one's weights to sample and to save."""
    model = training.model
    if isinstance(event, Evaluated) and math.isfinite(event.loss):
        with gathered(model):
            training.task.example(model)
    elif isinstance(event, SaveDue):
        checkpoints.save(training.run.checkpoints, model, training.optimizer, event.state, keep=1)


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
    except NothingToEvaluateError:  # there are fewer batches than processes
        share = Evaluation(0.0, 0)
    loss, tokens = group.sum(torch.tensor([share.loss * share.tokens, share.tokens], dtype=torch.float64)).tolist()
    if not tokens:
        raise NothingToEvaluateError
    return Evaluation(loss / tokens, int(tokens))


def started_before(folder: Path | None) -> RunFolder | None:
    """The run that these processes were training when one of them died, after which torchrun started them again.

    Of several machines, only the one whose process died counts that as a restart.
    """
    counted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if not counted and os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        return None
    runs, own = all_runs() if folder is None else [RunFolder(folder)], launchers()
    return next((run for run in runs if run.has_begun and _was_started_by(own, run)), None)


def _was_started_by(launchers: set[str], run: RunFolder) -> bool:
    """Whether one of them began the training last, and not in this very process, which may train several models."""
    start = _last_start(run)
    started_by = start.get("launchers")
    return isinstance(started_by, list) and not launchers.isdisjoint(started_by) and start["process"] != os.getpid()


def last_deadline(run: RunFolder) -> float | None:
    """When the run was to be done, in seconds of `time.time`, where it was time that decided."""
    deadline = _last_start(run).get("deadline")
    return deadline if isinstance(deadline, float) else None


def _last_start(run: RunFolder) -> dict[str, Any]:
    starts = [record for record in run.records() if record["kind"] == "start"]
    return starts[-1] if starts else {}
