"""The run folder: where it is, what is in it, and who may write to it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from clearhead import exchange
from clearhead.config import RunConfig, did_you_mean, read_toml, to_toml
from clearhead.data import Tokenizer
from clearhead.errors import ClearheadError, DataError, UsageError
from clearhead.models import LanguageModel
from clearhead.training import durable

if TYPE_CHECKING:
    from clearhead.workflows.evaluating import Score

RUNS = Path("runs")  # where runs are made and looked for, under the current folder
SEALED = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")


class Run:
    """A training run on disk; its folder is also a Hugging Face folder where the architecture has an equivalent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.name

    @property
    def checkpoints(self) -> Path:
        """Where the training can be taken up again."""
        return self.folder / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One JSON object per line and event."""
        return self.folder / "metrics.jsonl"

    @property
    def config(self) -> RunConfig:
        """Every option of the run.

        Raises:
            DataError: clearhead.toml is missing or damaged.
        """
        path = self.folder / "clearhead.toml"
        if not path.is_file():
            raise DataError(f"{self.folder} is not a run: it has no clearhead.toml")
        try:
            return RunConfig.read(read_toml(path))
        except UsageError as error:
            raise DataError(f"{path} is damaged ({error}); restore it, or train again") from None

    def write_config(self, config: RunConfig) -> None:
        """Write clearhead.toml, whole or not at all."""
        _replace(self.folder / "clearhead.toml", to_toml(config))

    @property
    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer.

        Raises:
            DataError: tokenizer.json is missing or damaged.
        """
        return Tokenizer.load(self.folder)

    def model(self) -> LanguageModel:
        """The model with the lowest held-out loss so far, in evaluation mode on the CPU.

        Raises:
            DataError: a file is missing, truncated or altered.
        """
        config = self.config
        fault = self.damage()
        if fault:
            raise DataError(
                f"{self.folder} is damaged: {fault}; 'clearhead resume {self.folder}' writes it again "
                "if its checkpoints are whole"
            )
        return exchange.load(self.folder, config=config.model)

    def save_model(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        """Make `model` the run's model: what is generated with, evaluated and exported."""
        exchange.save(self.folder, model, end_of_document=tokenizer.end_of_document)
        sums = {name: durable.sha256(self.folder / name) for name in SEALED if (self.folder / name).is_file()}
        _replace(self.folder / durable.MANIFEST, json.dumps({"format": durable.FORMAT, "sha256": sums}, indent=2))

    def damage(self) -> str | None:
        """What is wrong with the run's model files, or None."""
        try:
            sums = json.loads((self.folder / durable.MANIFEST).read_text(encoding="utf-8"))["sha256"]
            for name, expected in dict(sums).items():
                path = self.folder / str(name)
                if not path.is_file():
                    return f"{name} is missing"
                if durable.sha256(path) != expected:
                    return f"{name} was altered or cut off"
        except FileNotFoundError:
            return "no model was saved in it yet"
        except (OSError, ValueError, KeyError, TypeError):
            return f"{durable.MANIFEST} cannot be read"
        return None

    def records(self) -> Iterator[dict[str, Any]]:
        """What metrics.jsonl holds, a line that a crash cut off left out."""
        if not self.metrics.is_file():
            return
        with self.metrics.open(encoding="utf-8") as lines:
            for line in lines:
                try:
                    yield json.loads(line)
                except ValueError:
                    continue

    def generate(self, prompt: str = "", **options: Any) -> str:
        """One text that begins with `prompt`; options as in `SamplingConfig`."""
        from clearhead.workflows.generating import generate  # a cycle otherwise: generating opens runs

        return generate(self, [prompt], options)[0][0]

    def evaluate(self, source: str | None = None) -> "Score":
        """The loss on a text, or on the held-out one."""
        from clearhead.workflows.evaluating import evaluate

        return evaluate(self, source)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While this process writes to the run, no other may.

        Raises:
            ClearheadError: another process is writing to it.
        """
        lock = FileLock(self.folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ClearheadError(
                f"another process is training in {self.folder}; wait for it, or use another --out"
            ) from None
        try:
            yield
        finally:
            lock.release()


def create(folder: Path) -> Run:
    """A new, empty run.

    Raises:
        UsageError: there is a run already, or the folder cannot be made.
    """
    if (folder / "clearhead.toml").exists():
        raise UsageError(
            f"{folder} already holds a run; 'clearhead resume {folder}' goes on with it, or choose another --out"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except OSError as error:
        raise ClearheadError(
            f"the run folder {folder} cannot be written ({error.strerror}); choose another --out"
        ) from None
    return Run(folder)


def fresh_folder(stem: str) -> Path:
    """runs/STEM-N with the first N that is free."""
    number = 1
    while (RUNS / f"{stem}-{number}").exists():
        number += 1
    return RUNS / f"{stem}-{number}"


def open_run(which: str | Path | Run | None) -> Run:
    """A run by its folder or its name under `runs`; without either, the one that was written to last.

    Raises:
        DataError: there is no such run.
    """
    if isinstance(which, Run):
        return which
    runs = all_runs()
    if which is None:
        if not runs:
            raise DataError("there is no run here yet; 'clearhead train' makes one")
        return runs[0]
    for folder in (Path(which), RUNS / which):
        if (folder / "clearhead.toml").is_file():
            return Run(folder)
    if Path(which).is_dir():
        raise DataError(f"{which} is not a run: it has no clearhead.toml")
    hint = did_you_mean(str(which), [run.name for run in runs]) or "; 'clearhead list' shows them"
    raise DataError(f"there is no run '{which}'{hint}")


def run_and_text(first: str | None, second: str | None) -> tuple[str | None, str | None]:
    """Which run and which text are meant, where the run may be left out: a lone word is a run only if there is one."""
    if first is None or second is not None:
        return first, second
    is_run = any((folder / "clearhead.toml").is_file() for folder in (Path(first), RUNS / first) if len(first) < 256)
    looks_like_one = Path(first).parent == RUNS
    return (first, None) if is_run or looks_like_one else (None, first)


def all_runs() -> list[Run]:
    """The runs under `runs`, the one that was written to last first."""
    found = [path.parent for path in RUNS.glob("*/clearhead.toml")]
    return [Run(folder) for folder in sorted(found, key=_last_written, reverse=True)]


def _last_written(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder / "clearhead.toml", folder / "metrics.jsonl") if path.exists())


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
