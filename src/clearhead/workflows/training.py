"""Train, and take up a training again."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

from clearhead.config import RunConfig
from clearhead.data import pipe_of, short_name
from clearhead.errors import FaultError, InterruptedRunError, UsageError
from clearhead.models import LanguageModel
from clearhead.options import has_arguments
from clearhead.training import (
    Event,
    Notice,
    Optimizer,
    Processes,
    TrainingState,
    build_optimizer,
    check_optimizer,
    checkpoints,
)
from clearhead.wording import call, counted
from clearhead.workflows.averaging import use_mean
from clearhead.workflows.budget import Budget, apply_budget
from clearhead.workflows.events import CheckPassed, Observer, Preparing, Started
from clearhead.workflows.hardware import threads
from clearhead.workflows.planning import plan
from clearhead.workflows.pretrained import Pretrained
from clearhead.workflows.progress import showing
from clearhead.workflows.run import Run
from clearhead.workflows.runs.create import create
from clearhead.workflows.runs.find import open_folder
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.recorder import Recorder, drop_records_after
from clearhead.workflows.runs.report import is_complete, write_report
from clearhead.workflows.runs.tensorboard import TensorBoard
from clearhead.workflows.sharing import (
    Training,
    build,
    dismiss,
    last_deadline,
    lead,
    planned,
    release,
    shared,
    shares_weights,
    started_before,
)
from clearhead.workflows.signals import interruptible, stop_on_output_error
from clearhead.workflows.start import StartArguments, start_of
from clearhead.workflows.tasks import Task, open_task

MAX_STEM = 60  # characters of a run's name that come from its source
PAUSE = 0.2  # seconds between two events about the preparation


@shared
@has_arguments(RunConfig)
def train(
    source: str | Path | None = None,
    *,
    out: str | Path | None = None,
    check: bool = True,
    progress: bool | None = None,
    on_event: Observer | None = None,
    **start_arguments: Unpack[StartArguments],
) -> Run:
    """Train a model on a text or on sentence pairs.

    Clearhead picks the options you leave out from the size of the data, the time and the machine.

    Args:
        source: a file, a folder, a .jsonl, '-' for standard input, or the name of a corpus; pairs are two columns of
            a .tsv, "source" and "target" in a .jsonl, or two files, the other one `data.target` in `options`.
        out: the run's folder; by default a new one under `runs`.
        check: run the preflight before the first step.
        progress: show how it goes; None: on a terminal and in a notebook; elsewhere, as in a log, a line at its begin
            and one at its end; nothing where `on_event` is given. False: nothing.
        on_event: is told everything that happens.
        start_from: a run, or a Hugging Face folder, whose model is trained further (fine-tuning), with its options and
            its tokenizer and a new optimizer, at a tenth of its learning rate.
        preset: the options to start from, of a new model.
        minutes: how long it may take as a whole. The number of steps follows what the steps take, on the way as well.
        config: a TOML file of options.
        options: nested options, which win over the file, which wins over the preset.
        start_time: when the minutes began to count, in seconds of `time.perf_counter`; now by default.

    Raises:
        ClearheadError: one sentence on what is wrong; InterruptedRunError after Ctrl-C, with everything saved.
    """
    if start_arguments.get("start_time") is None:
        start_arguments["start_time"] = time.perf_counter()
    if run_before := started_before(None if out is None else Path(out)):
        with showing(progress, on_event) as on_event:
            _resume(run_before, {}, on_event, keep_deadline=True)
        return Run(run_before.folder)
    start = start_of(source, start_arguments)  # before anything slow
    pretrained = start.pretrained
    folder, source = Path(out) if out else None, start.config.data.source
    with showing(progress, on_event) as on_event, _new_run(folder, source) as run:
        if pipe := pipe_of(start.config.data.source):
            on_event(Notice(f"reading {pipe}: waiting for it to be written to, and closed"))
        tokenizers = None if pretrained is None else pretrained.tokenizers
        task = open_task(start.config, tokenizers=tokenizers, on_progress=_progress(on_event))
        planned = plan(start, task)
        for sentence in (task.describe(), *planned.reasons):
            on_event(Notice(sentence))
        _train(run, planned.config, task, on_event, check=check, pretrained=pretrained, budget=planned.budget)
    return Run(run.folder)


@shared
@has_arguments(RunConfig)
def resume(
    run: str | Path | RunFolder | None = None,
    *,
    options: Mapping[str, object] | None = None,
    progress: bool | None = None,
    on_event: Observer | None = None,
) -> Run:
    """Go on with a training where its last whole checkpoint left it, bit for bit as if it had never stopped.

    Args:
        run: a folder, a name, or None for the newest.
        options: `{"train": {"steps": N}}` extends the training; the model and the text cannot change.
        progress, on_event: as in `train`.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    opened = open_folder(run, to_resume=True)
    with showing(progress, on_event) as on_event:
        _resume(opened, options or {}, on_event)
    return Run(opened.folder)


def _resume(run: RunFolder, options: Mapping[str, object], on_event: Observer, *, keep_deadline: bool = False) -> None:
    """Go on with a run; to the time by which it was to be done, or to its number of steps."""
    with run.locked():
        config = RunConfig.read(run.config.model_dump(), options)
        check_optimizer(config.train)
        before = run.config
        if config.model_copy(update={"train": before.train}) != before:
            raise UsageError("resume goes on with the same model, data and seed; for others, start a new training")
        task = run.task()
        if config == before and is_complete(run, task):
            on_event(Notice(_nothing_left(run)))
            dismiss(run)
            return
        deadline = last_deadline(run) if keep_deadline else None
        budget = None if deadline is None else Budget.until(deadline, config, task)
        _train(run, config, task, on_event, check=True, budget=budget)


def _nothing_left(run: RunFolder) -> str:
    steps, longer = counted(run.config.train.steps, "step"), run.call_to_train_longer
    return f"{run.folder} has finished its {steps}, and is left as it is; to train it longer: {longer}"


@contextmanager
def _new_run(folder: Path | None, source: str) -> Iterator[RunFolder]:
    """A new run's folder, locked; it does not stay where the training never begins."""
    run, is_new = create(folder, short_name(source)[:MAX_STEM])
    with run.locked():
        try:
            yield run
        except BaseException as error:
            if run.has_begun:
                raise
            if is_new:
                shutil.rmtree(run.folder, ignore_errors=True)
            if isinstance(error, KeyboardInterrupt):
                raise InterruptedRunError("interrupted before the training began; nothing is kept") from None
            raise


def _train(
    run: RunFolder,
    config: RunConfig,
    task: Task,
    on_event: Observer,
    *,
    check: bool,
    pretrained: Pretrained | None = None,
    budget: Budget | None = None,
) -> None:
    """The model, the loop and the record, from the newest checkpoint, or from the start if there is none."""
    if config.train.parallel == "fsdp" and Processes.joined().world_size == 1:
        on_event(Notice("one process holds all weights: `train.parallel` is for several, which torchrun starts"))
    model = build(config, pretrained, sharded=shares_weights(config))
    optimizer = build_optimizer(model, config.train)
    training = Training(run, config, task, model, optimizer, _restore(run, model, optimizer, task, on_event))
    state = training.state
    if state.step > config.train.steps:
        raise UsageError(f"{run.folder} has done {counted(state.step, 'step')} already; raise `train.steps`")
    with interruptible() as interrupted, threads(config.train.threads), _tensorboard(run, config, state) as log_event:
        on_event = stop_on_output_error(on_event, interrupted)
        if check and state.step == 0:
            report = training.preflight(fresh=pretrained is None and not run.checkpoints.exists())
            if not report.passed:
                raise FaultError(report.line())
            on_event(CheckPassed(report.line()))
        if pretrained is not None:  # before the folder is a run: no resume can begin without the trained weights
            training.save_trained(pretrained)
        run.begin(config, task)
        run.stop_file.unlink(missing_ok=True)  # meant for a training that has ended
        lead(training, is_timed=budget is not None)
        events = training.events(interrupted, None if budget is None else planned(Processes.joined(), budget))
        if budget is not None:
            events = apply_budget(budget, events, run, config, on_event)
        try:
            source = None if pretrained is None else pretrained.source
            _record(training, events, log_event, on_event, source=source, budget=budget)
        except KeyboardInterrupt:
            raise _stopped(run, state, interrupted.reason) from None
    release(run)


def _record(
    training: Training,
    events: Iterator[Event],
    log_event: Callable[[Event], object],
    on_event: Observer,
    *,
    source: str | None,
    budget: Budget | None,
) -> None:
    """Write down what happens, and report it at the end, also of a training that was stopped or that failed.

    Args:
        source: where the model was trained before, if it was.
        budget: if it is time that decides.
    """
    run, config, task, state = training.run, training.config, training.task, training.state
    with Recorder(run, training.model, training.optimizer, task, on_event) as recorder:
        recorder.begin(state.step, deadline=None if budget is None else budget.wall_deadline)
        steps, utilization = config.train.steps, recorder.utilization
        on_event(Started(run.folder, state.step, steps, task.floor, task.bytes_per_token, utilization))
        if source is not None:
            recorder.begin_from(source)
        try:
            for event in events:
                log_event(event)
                recorder.take(event)
            if config.train.average_checkpoints > 1:
                recorder.averaged(use_mean(run, training.model, task, run.config, on_event))
            recorder.read_by_grammar()
        finally:
            finished = write_report(run, task)
        on_event(finished)


@contextmanager
def _tensorboard(run: RunFolder, config: RunConfig, state: TrainingState) -> Iterator[Callable[[Event], object]]:
    """TensorBoard, where it is wanted, as a consumer of events."""
    if not config.train.tensorboard:
        yield lambda event: None
        return
    with TensorBoard(run.folder / "tensorboard", state.step) as board:
        yield board.take


def _stopped(run: RunFolder, state: TrainingState, reason: str) -> InterruptedRunError:
    """What a person must know of a training that was stopped, and how it goes on."""
    saved = checkpoints.path_of(run.checkpoints, state.step).is_dir()  # not where the loss was not finite
    kept = "everything is saved" if saved else "what was saved while the loss was finite is kept"
    return InterruptedRunError(
        f"{reason}stopped after step {state.step:,} of {run.config.train.steps:,}, {kept}; "
        f"go on with: {call('resume', run.folder)}"
    )


def _restore(
    run: RunFolder, model: LanguageModel, optimizer: Optimizer, task: Task, on_event: Observer
) -> TrainingState:
    checkpoint = checkpoints.newest(run.checkpoints)
    if checkpoint is None:
        if run.metrics.exists():  # a folder that is no run yet stays as it is
            drop_records_after(run, 0)
        return TrainingState()
    for notice in checkpoint.notices:
        on_event(Notice(notice))
    best_step = checkpoints.read_state(checkpoint.path).best_step
    if run.damage() or (best_step is not None and run.model_step < best_step):
        best = checkpoints.best(run.checkpoints) or checkpoint
        for notice in best.notices[len(checkpoint.notices) :]:
            on_event(Notice(notice))
        behind = checkpoints.read_state(best.path).step  # a crash came between the checkpoint and the model
        run.save_model(checkpoints.read_model(best.path, model.config), task.special_tokens, step=behind)
    state = checkpoints.load(checkpoint.path, model, optimizer)
    drop_records_after(run, state.step)
    return state


def _progress(on_event: Observer) -> Callable[[float], None]:
    """Says how far the data is prepared."""
    on_event(Preparing(0.0))
    last_event = time.monotonic()

    def tell(share: float) -> None:
        nonlocal last_event
        if time.monotonic() - last_event > PAUSE:
            last_event = time.monotonic()
            on_event(Preparing(share))

    return tell
