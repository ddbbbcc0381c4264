"""Train, and take up a training again."""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from clearhead import data as texts
from clearhead.config import RunConfig, merge, read_toml
from clearhead.data import TextData, training_batch
from clearhead.doctor import preflight
from clearhead.errors import FaultError, InterruptedRunError, UsageError
from clearhead.models import LanguageModel, build
from clearhead.training import Event, Optimizer, TrainingState, build_optimizer, checkpoints, fit
from clearhead.workflows.evaluating import mean_loss
from clearhead.workflows.events import Observer, Passed, Said, Started, command, ignore
from clearhead.workflows.interruption import Batches, interruptible, until, while_watched
from clearhead.workflows.machine import choose_device, enough_memory, threads
from clearhead.workflows.planning import plan, refuse_contradictions
from clearhead.workflows.recording import Recorder, forget_after, write_report
from clearhead.workflows.run import Run, create, open_run
from clearhead.workflows.tensorboard import TensorBoard

SILENCE = 5.0  # seconds without a word that a person can stand
LESS_MEMORY = "lower --train.batch_size, --model.block_size or --model.d_model, or raise --train.accumulate"


def train(
    source: str | Path | None = None,
    *,
    preset: str | None = None,
    minutes: float | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    check: bool = True,
    observe: Observer = ignore,
) -> Run:
    """Train a model on a text; what is left open is chosen from the text's size, the time and the machine.

    Args:
        source: a file, a folder, a .jsonl, '-' for standard input, or the name of a corpus.
        preset: the options to start from.
        minutes: how long it may take as a whole.
        out: the run's folder; by default a new one under `runs`.
        config: a TOML file of options.
        options: nested options, which win over the file, which wins over the preset.
        check: run the preflight before the first step.
        observe: is told everything that happens.

    Raises:
        ClearheadError: one sentence on what is wrong; InterruptedRunError after Ctrl-C, with everything saved.
    """
    file = read_toml(Path(config)) if config else {}
    if minutes is not None and isinstance(file.get("train"), dict):
        file["train"].pop("steps", None)  # what is said now wins over the file
    given = merge(file, options or {}, {"data": {"source": str(source)}} if source is not None else {})
    wanted = refuse_contradictions(given, preset, minutes)  # before anything slow
    run, is_new = create(Path(out) if out else None, _stem(wanted.data.source))
    with run.locked(), enough_memory(LESS_MEMORY):
        try:
            prepared = texts.prepare(wanted.data, on_progress=_progress(observe))
            given = merge(given, {"data": {"source": prepared.source}})
            made = plan(given, preset, minutes, prepared)
            for sentence in (describe_text(prepared), *made.reasons):
                observe(Said(sentence))
            _go_on(run, made.config, prepared, observe, check=check)
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
    opened = open_run(run)
    with opened.locked(), enough_memory(LESS_MEMORY):
        config = RunConfig.read(opened.config.model_dump(), options or {})
        if config.model != opened.config.model or config.data != opened.config.data:
            raise UsageError("resume goes on with the same model and text; for others, start a new 'clearhead train'")
        _go_on(opened, config, opened.text(), observe, check=True)
    return opened


def _go_on(run: Run, config: RunConfig, prepared: TextData, observe: Observer, *, check: bool) -> None:
    """From the newest checkpoint, or from the start if there is none, to the last step."""
    model = build(config.model, seed=config.seed).to(choose_device(config.train.device))
    optimizer = build_optimizer(model, config.train)
    state = _take_up(run, model, optimizer, prepared, observe)
    if state.step > config.train.steps:
        raise UsageError(f"{run.folder} has done {state.step:,} steps already; give more with --train.steps")
    isolate = prepared.tokenizer.end_of_document if config.data.isolate_documents else None
    forward = None if isolate is None else _isolated(model, isolate)
    with ExitStack() as open_until_the_end:
        enter = open_until_the_end.enter_context
        interrupted = enter(interruptible())
        observe = while_watched(observe, interrupted)
        enter(threads(config.train.threads))
        if check and state.step == 0:
            inputs, targets = _batches(config, prepared)(0)
            parameters = optimizer.parameters.values()
            report = preflight(model, inputs, targets, parameters, fresh=True, forward=forward)
            if not report.passed:
                raise FaultError(report.line())
            observe(Passed(report.line()))
        consumers: list[Callable[[Event], None]] = []
        if config.train.tensorboard:
            consumers.append(enter(TensorBoard(run.folder / "tensorboard", state.step)).take)
        run.begin(config, prepared)
        recorder = enter(Recorder(run, model, optimizer, prepared.tokenizer, observe))
        consumers.append(recorder.take)
        observe(Started(run.folder, state.step, config.train.steps, prepared.floor))
        events = fit(
            model,
            config.train,
            until(interrupted, _batches(config, prepared)),
            seed=config.seed,
            optimizer=optimizer,
            state=state,
            evaluate=lambda: mean_loss(model, prepared.val, limit=config.train.eval_tokens, isolate=isolate),
            forward=forward,
        )
        try:
            for event in events:
                for consume in consumers:
                    consume(event)
        except KeyboardInterrupt:
            recorder.save(replace(state), best=False)
            raise InterruptedRunError(
                f"stopped after step {state.step:,} of {config.train.steps:,}, everything is saved; "
                f"go on with: {command('resume', run.folder)}"
            ) from None
        finally:
            finished = write_report(run, prepared.floor)  # also of a training that was stopped or that failed
        observe(finished)


def _take_up(
    run: Run, model: LanguageModel, optimizer: Optimizer, prepared: TextData, observe: Observer
) -> TrainingState:
    found = checkpoints.newest(run.checkpoints)
    if found is None:
        forget_after(run, 0)
        return TrainingState()
    for notice in found.notices:
        observe(Said(notice))
    best = checkpoints.best(run.checkpoints)
    if best and (run.damage() or _is_best(best.path)):  # a crash may have come between the checkpoint and the model
        checkpoints.load(best.path, model)
        run.save_model(model, prepared.tokenizer)
    state = checkpoints.load(found.path, model, optimizer)
    forget_after(run, state.step)
    return state


def _is_best(checkpoint: Path) -> bool:
    state = checkpoints.read_state(checkpoint)
    return state.best_step == state.step


def _batches(config: RunConfig, prepared: TextData) -> Batches:
    def batch(step: int) -> tuple[Tensor, Tensor]:
        return training_batch(
            prepared.train,
            block_size=config.model.block_size,
            batch_size=config.train.batch_size,
            seed=config.seed,
            step=step,
        )

    return batch


def _isolated(model: LanguageModel, end: int) -> Callable[[Tensor], Tensor]:
    """The model with no attention from one document to another; `end` is the token that closes a document."""
    return lambda ids: model(ids, documents=texts.document_numbers(ids, end))


def _progress(observe: Observer) -> Callable[[float], None]:
    """Says how far the text is prepared, where that takes a while."""
    told = time.monotonic()

    def tell(share: float) -> None:
        nonlocal told
        if time.monotonic() - told > SILENCE:
            told = time.monotonic()
            observe(Said(f"preparing the text: {share:.0%}"))

    return tell


def describe_text(prepared: TextData) -> str:
    """The text, how it is cut, and what its tokens are, in one line."""
    documents = f" in {prepared.n_documents:,} documents" if prepared.n_documents > 1 else ""
    alphabet = f", {prepared.distinct_characters} distinct" if prepared.distinct_characters else ""
    cut = f"{prepared.train_characters:,} training, {prepared.val_characters:,} validation"
    n_characters = prepared.train_characters + prepared.val_characters
    return "; ".join((f"text: {n_characters:,} characters{documents}{alphabet} ({cut})", *prepared.notes))


def _stem(source: str) -> str:
    return Path(os.path.expanduser(source)).resolve().stem if source != "-" else "stdin"
