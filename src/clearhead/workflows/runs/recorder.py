"""Write a training's files as it goes on: metrics.jsonl, checkpoints, the model."""

import json
import math
import os
import platform
from dataclasses import asdict
from types import TracebackType
from typing import Self

import torch

import clearhead
from clearhead.files import write_text
from clearhead.inspection import bits_per_byte
from clearhead.models import LanguageModel
from clearhead.training import (
    Evaluated,
    Event,
    Notice,
    Optimizer,
    Processes,
    SaveDue,
    Stepped,
    TrainingState,
    checkpoints,
    gathered,
    is_sharded,
    launchers,
)
from clearhead.workflows.events import Observer, Read, Sampled, WeightsAveraged
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.tasks import Task
from clearhead.workflows.utilization import Utilization

KINDS = {Stepped: "step", Evaluated: "evaluation", Sampled: "sample", WeightsAveraged: "mean"}


class Recorder:
    """Consumes the training's events: writes files, and passes on what the console shows."""

    def __init__(
        self, run: RunFolder, model: LanguageModel, optimizer: Optimizer, task: Task, on_event: Observer
    ) -> None:
        self.run, self.model, self.optimizer, self.task, self.on_event = run, model, optimizer, task, on_event
        train = run.config.train
        self.keep = max(train.keep_checkpoints, train.average_checkpoints)  # what a mean is taken of must be there
        self.every = train.save_every
        self.evaluated: int | None = None  # the last step with a finite loss
        self.utilization = Utilization.of(run.config, model.device)

    def __enter__(self) -> Self:
        self.log = self.run.metrics.open("a", encoding="utf-8", errors="replace", buffering=1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._flush()
        finally:
            self.log.close()

    def take(self, event: Event) -> None:
        """Handle one event of the loop."""
        match event:
            case Stepped():
                self._write(event)
                self.on_event(event)
            case Evaluated():
                self._write(event)
                self.on_event(event)
                if math.isfinite(event.loss):  # what diverged writes nothing that is text
                    self.evaluated = event.step
                    self._sample(event.step)
            case SaveDue():
                self.save(event.state, best=event.best)
            case Notice():
                self.on_event(event)

    def save(self, state: TrainingState, *, best: bool) -> None:
        """A checkpoint of now; the run's own model follows the best one, and is never missing."""
        self._flush()  # a checkpoint never knows of steps that the log does not
        path = checkpoints.save(
            self.run.checkpoints, self.model, self.optimizer, state, keep=self.keep, every=self.every
        )
        if best or self.run.damage():
            model = checkpoints.read_model(path, self.model.config) if is_sharded(self.model) else self.model
            self.run.save_model(model, self.task.special_tokens, step=state.step)

    def _flush(self) -> None:
        self.log.flush()
        os.fsync(self.log.fileno())

    def begin(self, step: int, *, deadline: float | None = None) -> None:
        """Record that training starts, or goes on, after `step` steps: how far it is to go, where and with what.

        Args:
            deadline: when it is to be done, in seconds of `time.time`, if it is time that decides.
        """
        versions = {"clearhead": clearhead.__version__, "torch": torch.__version__, "python": platform.python_version()}
        self._log(
            {
                "kind": "start",
                "step": step,
                "steps": self.run.config.train.steps,
                "floor": self.task.floor,
                "process": os.getpid(),
                "processes": Processes.joined().world_size,
                "launchers": sorted(launchers()),
                "deadline": deadline,
                "threads": torch.get_num_threads(),
                "device": str(self.model.device),
                "versions": versions,
            }
        )

    def begin_from(self, source: str) -> None:
        """The model was trained before, elsewhere: where, and what it writes before the first step."""
        self._log({"kind": "origin", "step": 0, "from": source})
        if not is_sharded(self.model):  # the other processes would have to take part, and have not begun
            self._sample(0)

    def averaged(self, event: WeightsAveraged) -> None:
        """Record the result of checkpoint averaging."""
        self._write(event)
        self.on_event(event)

    def read_by_grammar(self) -> None:
        """Record what the corpus's grammar says of the run's model, where there is such a grammar."""
        if self.evaluated is None:
            return
        model = self.run.model()  # on the CPU, which may be the only place for it
        score = self.task.grammar_score(model if is_sharded(self.model) else model.to(self.model.device))
        if score is not None:
            self._log({"kind": "grammar", "step": self.evaluated, **asdict(score)})
            self.on_event(Read(self.evaluated, score))

    def _sample(self, step: int) -> None:
        with gathered(self.model):
            example = self.task.example(self.model)
        sampled = Sampled(step, example.text, example.scores)
        self._write(sampled)
        self.on_event(sampled)

    def _write(self, event: Stepped | Evaluated | Sampled | WeightsAveraged) -> None:
        record = {"kind": KINDS[type(event)], **asdict(event)}
        if isinstance(event, Stepped):
            record |= self.utilization.record(event)
        if isinstance(event, Evaluated | WeightsAveraged) and self.task.bytes_per_token is not None:
            record["bits_per_byte"] = bits_per_byte(event.loss, self.task.bytes_per_token)
        self._log(record)

    def _log(self, record: dict[str, object]) -> None:
        self.log.write(json.dumps({key: _finite(value) for key, value in record.items()}, ensure_ascii=False) + "\n")


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value  # JSON has no NaN


def drop_records_after(run: RunFolder, step: int) -> None:
    """Truncate metrics.jsonl to the first `step` steps: later ones will be repeated, and so will an average."""
    kept = [record for record in run.records() if record["step"] <= step and record["kind"] != "mean"]
    write_text(run.metrics, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept))
