"""What the files of a run tell, for somebody who looks again and again: read once, and then only what is new."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from clearhead.errors import DataError
from clearhead.inspection import estimate_cost
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.history import History
from clearhead.workflows.runs.records import record_of

MOST = 256  # runs that are remembered
PIECE = 2**20  # bytes of a log that are read at once


@dataclass
class Log:
    """A run's metrics.jsonl up to `offset` bytes: what it amounts to, and the latest record of a start."""

    identity: tuple[int, int]
    offset: int
    history: History
    start: dict[str, Any] | None


class Logs:
    """The logs of runs. Not for several threads at once."""

    def __init__(self) -> None:
        self._logs = OrderedDict[str, Log]()

    def of(self, run: RunFolder) -> Log:
        """The log of a run up to now. A log that became shorter, as that of a resumed run may, is read anew."""
        key = str(run.folder)
        try:
            status = run.metrics.stat()
        except OSError:
            self._logs.pop(key, None)
            return Log((0, 0), 0, History(), None)
        identity = status.st_dev, status.st_ino
        log = self._logs.pop(key, None)
        if log is None or log.identity != identity or log.offset > status.st_size:
            log = Log(identity, 0, History(), None)
        for record, offset in new_records(run, log.offset):
            log.offset = offset
            log.history.take(record)
            if record["kind"] == "start":
                log.start = record
        self._logs[key] = log
        if len(self._logs) > MOST:
            self._logs.popitem(last=False)
        return log


def new_records(run: RunFolder, offset: int) -> Iterator[tuple[dict[str, Any], int]]:
    """The records behind so many bytes of a run's log, each with where it ends. A line that is not complete waits."""
    try:
        lines = run.metrics.open("rb")
    except OSError:
        return
    with lines:
        lines.seek(offset)
        while line := lines.readline(PIECE):
            if not line.endswith(b"\n") and len(line) < PIECE:
                return
            offset += len(line)
            record = record_of(line.decode("utf-8", "replace"))
            if record is not None:
                yield record, offset


def state_of(run: RunFolder) -> str:
    """What the run is doing: training, ready (it has a model), or empty (a training that has saved none)."""
    if run.is_training:
        return "training"
    return "ready" if run.has_model else "empty"


def summary_of(run: RunFolder, log: Log) -> dict[str, object]:
    """A line of the list of runs; of a damaged one only that it is so."""
    try:
        config = run.config
    except DataError as error:
        return {"name": run.name, "state": "damaged", "problem": str(error)}
    history, start = log.history, log.start or {}
    samples = list(history.samples)
    return {
        "name": run.name,
        "state": state_of(run),
        "objective": config.objective,
        "source": config.data.source,
        "parameters": estimate_cost(config.model).parameters,
        "layers": config.model.n_layers,
        "heads": config.model.n_heads,
        "block_size": config.model.block_size,
        "step": history.last_step,
        "steps": config.train.steps,
        "seconds": history.seconds,
        "tokens_per_second": history.tokens / history.seconds if history.seconds else None,
        "train_loss": history.train_loss,
        "val_loss": history.val_loss,
        "best_val_loss": history.best_val_loss,
        "bits_per_byte": history.bits_per_byte,
        "floor": start.get("floor") if isinstance(start.get("floor"), int | float) else None,
        "sample": samples[-1].text if samples else None,
    }
