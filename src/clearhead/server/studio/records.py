"""What the files of a run say, for a reader that polls: read once, and then only what is new."""

import os
import stat
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.errors import DataError
from clearhead.files import RUN_CONFIG
from clearhead.inspection import estimate_cost
from clearhead.pages import printable
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.history import MAX_CHARACTERS, SHORTEST, History
from clearhead.workflows.runs.records import LARGEST, record_of

MOST = 256  # runs that are remembered
PIECE = 2**20  # bytes of a line
AT_ONCE = 2**24  # bytes of a log
SENT = ("kind", "step", "loss", "tokens", "seconds", "learning_rate", "gradient_norm")  # of a record, to a page


@dataclass
class Log:
    """A run's metrics.jsonl up to `offset` bytes: what it amounts to, and the latest record of a start."""

    identity: tuple[int, int]
    offset: int
    history: History
    start: dict[str, Any] | None
    options: tuple[int, dict[str, object]] | None = None  # when clearhead.toml was written, and what a page shows of it


class Logs:
    """The logs of runs. Not for several threads at once."""

    def __init__(self) -> None:
        self._logs = OrderedDict[str, Log]()

    def of(self, run: RunFolder) -> Log:
        """The log of a run up to now. A log that became shorter, as that of a resumed run may, is read anew.

        Of one with much that is new, only `AT_ONCE` bytes are read: the next call reads on.
        """
        key = str(run.folder)
        log = self._logs.pop(key, None)
        status = _regular(run.metrics)
        identity, size = (0, 0), 0
        if status is not None:
            identity, size = (status.st_dev, status.st_ino), status.st_size
        if log is None or log.identity != identity or log.offset > size:
            log = Log(identity, 0, History(), None)
        records, log.offset = read_records(run, log.offset)
        for record in records:
            log.history.take(record)
            if record["kind"] == "start":
                log.start = record
        self._logs[key] = log
        if len(self._logs) > MOST:
            self._logs.popitem(last=False)
        return log


def read_records(run: RunFolder, offset: int, at_once: int = AT_ONCE) -> tuple[list[dict[str, Any]], int]:
    """The records behind so many bytes of a run's log, and how far that is. A line that is not complete waits.

    What is no record is passed over, and no more than about `at_once` bytes are read.
    """
    records = list[dict[str, Any]]()
    if _regular(run.metrics) is None:
        return records, offset
    try:
        with run.metrics.open("rb") as lines:
            lines.seek(offset)
            end = offset + at_once
            while offset < end and (line := lines.readline(PIECE)):
                if not line.endswith(b"\n") and len(line) < PIECE:
                    break
                offset += len(line)
                record = record_of(line.decode("utf-8", "replace"))
                if record is not None:
                    records.append(record)
    except OSError:
        pass
    return records, offset


def _regular(path: Path) -> os.stat_result | None:
    """What is known of a file; None where it is missing, or opening it might never return."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def sent(record: dict[str, Any]) -> dict[str, object]:
    """What a page draws of a record: whoever wrote the log may have put anything beside it."""
    fields = {name: record[name] for name in SENT if name in record}
    if record["kind"] == "sample":
        fields["text"] = printable(record["text"][:MAX_CHARACTERS])
    if record["kind"] == "start":
        fields |= {"steps": record["steps"], "floor": floor_of(record)}
    return fields


def floor_of(start: dict[str, Any] | None) -> float | None:
    """The least loss that is possible, as the record of a start says."""
    floor = (start or {}).get("floor")
    if isinstance(floor, bool) or not isinstance(floor, int | float) or not abs(floor) < LARGEST:
        return None
    return float(floor)


def state_of(run: RunFolder) -> str:
    """What the run is doing: training, ready (it has a model), or empty (a training that has saved none)."""
    if run.is_training:
        return "training"
    return "ready" if run.has_model else "empty"


def summary_of(run: RunFolder, log: Log) -> dict[str, object]:
    """A line of the list of runs; of a damaged one only that it is so."""
    try:
        options = _options_of(run, log)
    except (DataError, OSError) as error:
        return {"name": run.name, "state": "damaged", "problem": str(error)}
    history = log.history
    samples = list(history.samples)
    return {
        "name": run.name,
        "state": state_of(run),
        **options,
        "step": history.last_step,
        "seconds": history.seconds,
        "tokens_per_second": history.tokens / history.seconds if history.seconds > SHORTEST else None,
        "train_loss": history.train_loss,
        "val_loss": history.val_loss,
        "best_val_loss": history.best_val_loss,
        "bits_per_byte": history.bits_per_byte,
        "floor": floor_of(log.start),
        "sample": printable(samples[-1].text) if samples else None,
    }


def _options_of(run: RunFolder, log: Log) -> dict[str, object]:
    """What a page shows of clearhead.toml, which is read again where it was written again."""
    written = (run.folder / RUN_CONFIG).stat().st_mtime_ns
    if log.options is None or log.options[0] != written:
        config = run.config
        described: dict[str, object] = {
            "objective": config.objective,
            "source": config.data.source,
            "parameters": estimate_cost(config.model).parameters,
            "layers": config.model.n_layers,
            "heads": config.model.n_heads,
            "block_size": config.model.block_size,
            "steps": config.train.steps,
        }
        log.options = written, described
    return log.options[1]
