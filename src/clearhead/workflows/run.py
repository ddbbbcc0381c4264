"""The run folder: where it is, what is in it, and who may write to it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from clearhead import exchange
from clearhead.config import RunConfig, did_you_mean, read_toml, to_toml
from clearhead.data import TextData, Tokenizer, prepare
from clearhead.errors import ClearheadError, DataError, UsageError
from clearhead.models import LanguageModel
from clearhead.training import durable
from clearhead.workflows.events import command

if TYPE_CHECKING:
    from clearhead.workflows.evaluating import Score

RUNS = Path("runs")  # where runs are made and looked for, under the current folder
LOCK, TEXT, UNFINISHED = ".lock", "text.json", ".unfinished-tokenizer"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
BEFORE_IT_BEGINS = {LOCK, TEXT + ".new", "tensorboard"}  # may stand in a folder without any sign that it is ours
SEALED = ("config.json", "generation_config.json", "model.safetensors", *TOKENIZER)


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
    def has_begun(self) -> bool:
        """Whether the folder is a run yet."""
        return (self.folder / "clearhead.toml").exists()

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
        try:
            return Tokenizer.load(self.folder)
        except DataError as error:
            raise DataError(f"{self.folder} is damaged ({error}); put tokenizer.json back, or train again") from None

    def text(self) -> TextData:
        """The text that the run was trained on, as its tokenizer encodes it.

        Raises:
            DataError: the text or the tokenizer is gone, or not the one that the training began with.
        """
        config = self.config.data
        prepared = prepare(config, tokenizer=self.tokenizer)
        try:
            known = (self.folder / TEXT).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return prepared  # nothing speaks against it
        if known != _fingerprint(prepared):
            raise DataError(
                f"{config.source} or the run's tokenizer.json is not what the training in {self.folder} began with; "
                "put it back, or train again"
            )
        return prepared

    def begin(self, config: RunConfig, prepared: TextData) -> None:
        """Write down what the training goes by. clearhead.toml comes last: with it the folder is a run."""
        _replace(self.folder / TEXT, _fingerprint(prepared))  # first: it says that what else is here is ours
        made = self.folder / UNFINISHED
        prepared.tokenizer.save(made)
        for path in list(made.iterdir()):
            path.replace(self.folder / path.name)
        made.rmdir()
        self.write_config(config)

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
        with self.metrics.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and {"kind", "step"} <= record.keys():
                    yield record

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
            ClearheadError: another process is writing to it, or the system refuses to write.
        """
        lock = FileLock(self.folder / LOCK)
        try:
            with lock.acquire(timeout=0):
                yield
        except Timeout:
            raise ClearheadError(
                f"another process is training in {self.folder}; wait for it, or use another --out"
            ) from None
        except BrokenPipeError:
            raise  # the trouble is with whoever read the output
        except OSError as error:
            raise ClearheadError(
                f"cannot write in {self.folder} ({error.strerror or error}); mend that, and what was saved "
                f"goes on with: {command('resume', self.folder)}"
            ) from error


def create(folder: Path | None, stem: str) -> tuple[Run, bool]:
    """A new, empty run, and whether its folder is new as well.

    Args:
        folder: where; by default runs/STEM-N with the first N that is free.
        stem: see above.

    Raises:
        UsageError: there is something in the folder already.
        ClearheadError: it cannot be made.
    """
    chosen = folder or next(RUNS / f"{stem}-{number}" for number in count(1) if _make(RUNS / f"{stem}-{number}"))
    is_new = folder is None or _make(folder)
    if Run(chosen).has_begun:
        raise UsageError(
            f"{chosen} already holds a run; 'clearhead resume {chosen}' goes on with it, or choose another --out"
        )
    found = {path.name for path in chosen.iterdir()} - BEFORE_IT_BEGINS
    ours = (chosen / TEXT).is_file() and found <= {
        TEXT,
        UNFINISHED,
        *TOKENIZER,
        "clearhead.toml.new",
    }  # a crash came early
    if found and not ours:
        raise UsageError(f"{chosen} is not empty, and a run would write over what is there; choose another --out")
    return Run(chosen), is_new


def _make(folder: Path) -> bool:
    """Make the folder; False when it is there already. Of two processes only one makes it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        if folder.is_dir():
            return False
        raise ClearheadError(f"the run cannot be made in {folder}, which is a file; choose another --out") from None
    except OSError as error:
        raise ClearheadError(f"the run cannot be made in {folder} ({error.strerror}); choose another --out") from None
    return True


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
    folder = _run_folder(which)
    if folder:
        return Run(folder)
    if os.path.isdir(which):  # unlike Path.is_dir, no error where the name is too long
        raise DataError(f"{which} is not a run: it has no clearhead.toml")
    hint = did_you_mean(str(which), [run.name for run in runs]) or "; 'clearhead list' shows them"
    raise DataError(f"there is no run '{which}'{hint}")


def run_and_text(first: str | None, second: str | None) -> tuple[str | None, str | None]:
    """Which run and which text are meant, where the run may be left out: a lone word is a run only if there is one."""
    if first is None or second is not None:
        return first, second
    looks_like_one = Path(first).parent == RUNS
    return (first, None) if looks_like_one or _run_folder(first) else (None, first)


def _run_folder(which: str | Path) -> Path | None:
    """The run's folder, where there is one of that name."""
    try:
        return next((f for f in (Path(which), RUNS / which) if (f / "clearhead.toml").is_file()), None)
    except OSError:  # a prompt may be too long for a name
        return None


def all_runs() -> list[Run]:
    """The runs under `runs`, the one that was written to last first."""
    found = [path.parent for path in RUNS.glob("*/clearhead.toml")]
    return [Run(folder) for folder in sorted(found, key=_last_written, reverse=True)]


def _last_written(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder / "clearhead.toml", folder / "metrics.jsonl") if path.exists())


def _fingerprint(prepared: TextData) -> str:
    return json.dumps({"fingerprint": prepared.fingerprint}) + "\n"


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
