"""Train, and take up a training again."""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from clearhead.config import RunConfig
from clearhead.data import pipe_of
from clearhead.doctor import PreflightReport
from clearhead.errors import FaultError, InterruptedRunError, UsageError
from clearhead.models import LanguageModel, build
from clearhead.options import merge
from clearhead.training import Event, Optimizer, TrainingState, build_optimizer, checkpoints, fit
from clearhead.workflows.averaging import use_mean
from clearhead.workflows.events import Observer, Passed, Said, Started, command, ignore
from clearhead.workflows.hardware import choose_device, enough_memory, threads
from clearhead.workflows.planning import gather, plan, refuse_contradictions
from clearhead.workflows.pretrained import Origin, open_origin
from clearhead.workflows.run import Run
from clearhead.workflows.run_log import Recorder, forget_after, write_report
from clearhead.workflows.runs import create, load
from clearhead.workflows.signals import interruptible, until, while_watched
from clearhead.workflows.tasks import Task, open_task
from clearhead.workflows.tensorboard import TensorBoard

SILENCE = 5.0  # seconds without a word that a person can stand
LESS_MEMORY = "lower --train.batch_size, --model.block_size or --model.d_model, or raise --train.micro_batches"


def train(
    source: str | Path | None = None,
    *,
    start_from: str | Path | Run | None = None,
    preset: str | None = None,
    minutes: float | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    check: bool = True,
    observe: Observer = ignore,
) -> Run:
    """Train a model on a text or on sentence pairs; what is left open is chosen from their size, the time, the machine.

    Args:
        source: a file, a folder, a .jsonl, '-' for standard input, or the name of a corpus; pairs are two columns of
            a .tsv, "source" and "target" in a .jsonl, or two files, the other one `data.target` in `options`.
        start_from: a run, or a Hugging Face folder, whose model is trained further (fine-tuning), with its options and
            its tokenizer and a new optimizer, at a tenth of its learning rate.
        preset: the options to start from, of a new model.
        minutes: how long it may take as a whole.
        out: the run's folder; by default a new one under `runs`.
        config: a TOML file of options.
        options: nested options, which win over the file, which wins over the preset.
        check: run the preflight before the first step.
        observe: is told everything that happens.

    Raises:
        ClearheadError: one sentence on what is wrong; InterruptedRunError after Ctrl-C, with everything saved.
    """
    settings = gather(source, config, options, timed=minutes is not None)
    origin = None if start_from is None else open_origin(start_from)
    requested = refuse_contradictions(settings, preset, minutes, origin)  # before anything slow
    run, is_new = create(Path(out) if out else None, _stem(requested.data.source))
    with run.locked(), enough_memory(LESS_MEMORY):
        try:
            known = None if origin is None else origin.tokenizers
            if pipe := pipe_of(requested.data.source):
                observe(Said(f"reading {pipe}: waiting for it to be written to, and closed"))
            task = open_task(requested, tokenizers=known, on_progress=_progress(observe))
            settings = merge(settings, {"data": task.data_settings()})
            planned = plan(settings, preset, minutes, task, origin)
            for sentence in (task.describe(), *planned.reasons):
                observe(Said(sentence))
            _go_on(run, planned.config, task, observe, check=check, origin=origin)
        except BaseException:
            if is_new and not run.has_begun:  # leave no folder behind for a training that never began
                shutil.rmtree(run.folder, ignore_errors=True)
            raise
    return run


def resume(
    run: str | Path | Run | None = None, *, options: Mapping[str, Any] | None = None, observe: Observer = ignore
) -> Run:
    """Go on with a training where its last whole checkpoint left it, bit for bit as if it had never stopped.

    Args:
        run: a folder, a name, or None for the newest.
        options: `{"train": {"steps": N}}` extends the training; the model and the text cannot change.
        observe: is told everything that happens.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    opened = load(run)
    with opened.locked(), enough_memory(LESS_MEMORY):
        config = RunConfig.read(opened.config.model_dump(), options or {})
        before = opened.config
        if (config.model, config.data, config.objective) != (before.model, before.data, before.objective):
            raise UsageError("resume goes on with the same model and data; for others, start a new 'clearhead train'")
        _go_on(opened, config, opened.task(), observe, check=True)
    return opened


def _go_on(
    run: Run, config: RunConfig, task: Task, observe: Observer, *, check: bool, origin: Origin | None = None
) -> None:
    """From the newest checkpoint, or from the start if there is none, to the last step."""
    model = build(config.model, seed=config.seed) if origin is None else origin.model_for(config.model)
    model = model.to(choose_device(config.train.device))
    optimizer = build_optimizer(model, config.train)
    state = _take_up(run, model, optimizer, task, observe)
    if state.step > config.train.steps:
        raise UsageError(f"{run.folder} has done {state.step:,} steps already; give more with --train.steps")
    with ExitStack() as open_until_the_end:
        enter = open_until_the_end.enter_context
        interrupted = enter(interruptible())
        observe = while_watched(observe, interrupted)
        enter(threads(config.train.threads))
        if check and state.step == 0:
            fresh = origin is None and not run.checkpoints.exists()
            observe(Passed(_passed(task.examine(model, optimizer, config, fresh=fresh))))
        consumers: list[Callable[[Event], None]] = []
        if config.train.tensorboard:
            consumers.append(enter(TensorBoard(run.folder / "tensorboard", state.step)).take)
        if origin is not None:  # before the folder is a run, so that no resume can begin without the trained weights
            checkpoints.save(run.checkpoints, model, optimizer, state, keep=config.train.keep_checkpoints)
        run.begin(config, task)
        recorder = enter(Recorder(run, model, optimizer, task, observe))
        consumers.append(recorder.take)
        observe(Started(run.folder, state.step, config.train.steps, task.floor))
        if origin is not None:
            recorder.begin_from(origin.source)
        events = fit(
            model,
            config.train,
            until(interrupted, task.batches(config)),
            seed=config.seed,
            optimizer=optimizer,
            state=state,
            evaluate=lambda: task.evaluate(model, config),
            forward=task.forward(model),
        )
        try:
            for event in events:
                for consume in consumers:
                    consume(event)
        except KeyboardInterrupt:
            saved = checkpoints.path_of(run.checkpoints, state.step).is_dir()  # not where the loss was not finite
            what = "everything is saved" if saved else "what was saved while the loss was finite is kept"
            raise InterruptedRunError(
                f"{interrupted.reason}stopped after step {state.step:,} of {config.train.steps:,}, {what}; "
                f"go on with: {command('resume', run.folder)}"
            ) from None
        else:
            if config.train.average_checkpoints > 1:
                recorder.averaged(use_mean(run, model, task, config, observe))
        finally:
            finished = write_report(run, task)  # also of a training that was stopped or that failed
        observe(finished)


def _passed(report: PreflightReport) -> str:
    if not report.passed:
        raise FaultError(report.line())
    return report.line()


def _take_up(run: Run, model: LanguageModel, optimizer: Optimizer, task: Task, observe: Observer) -> TrainingState:
    checkpoint = checkpoints.newest(run.checkpoints)
    if checkpoint is None:
        if run.metrics.exists():  # a folder that is no run yet stays as it is
            forget_after(run, 0)
        return TrainingState()
    for notice in checkpoint.notices:
        observe(Said(notice))
    best_step = checkpoints.read_state(checkpoint.path).best_step
    if run.damage() or (best_step is not None and run.model_step < best_step):
        best = checkpoints.best(run.checkpoints) or checkpoint
        for notice in best.notices[len(checkpoint.notices) :]:
            observe(Said(notice))
        behind = checkpoints.load(best.path, model)  # a crash came between the checkpoint and the model
        run.save_model(model, task.special_tokens, step=behind.step)
    state = checkpoints.load(checkpoint.path, model, optimizer)
    forget_after(run, state.step)
    return state


def _progress(observe: Observer) -> Callable[[float], None]:
    """Says how far the data is prepared, where that takes a while."""
    last_notice = time.monotonic()

    def tell(share: float) -> None:
        nonlocal last_notice
        if time.monotonic() - last_notice > SILENCE:
            last_notice = time.monotonic()
            observe(Said(f"preparing the data: {share:.0%}"))

    return tell


def _stem(source: str) -> str:
    name = Path(os.path.expanduser(source)).resolve().stem if source != "-" else "stdin"
    return name.replace(":", "-")  # of a corpus and its split; Windows has no such file name
