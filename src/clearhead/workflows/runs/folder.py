"""The run folder: its files, and the lock for writing to it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from clearhead import interop
from clearhead.config import RunConfig
from clearhead.data import Tokenizer
from clearhead.data.tokenizers.chat_template import FILE as CHAT_TEMPLATE
from clearhead.errors import ClearheadError, DataError, UsageError
from clearhead.files import MANIFEST, RUN_CONFIG, move_into, read_bytes, start_folder, write_text
from clearhead.models import LanguageModel
from clearhead.options import parse_toml, to_toml
from clearhead.wording import call
from clearhead.workflows.runs.digests import (
    WEIGHTS,
    add_digest,
    check_model_files,
    digest_matches,
    first_altered,
    has_model,
    replace_model,
)
from clearhead.workflows.runs.records import record_of
from clearhead.workflows.tasks import SOURCE_TOKENIZER, Task, Tokenizers, load_tokenizers, open_task

LOCK, TEXT = ".lock", "text.json"
PATIENCE = 0.5  # seconds: somebody may be looking whether a training goes on
TOKENIZER = tuple(f"{name}{end}" for name in ("tokenizer", SOURCE_TOKENIZER) for end in (".json", "_config.json"))
TOKENIZER += (CHAT_TEMPLATE,)
MAX_CONFIG = 1 << 18  # bytes of a clearhead.toml; we write some thousands
IMPORTED = "import:"  # what the source of a run begins with whose model was trained elsewhere


class RunFolder:
    """A training run on disk; its folder is also a Hugging Face folder where the architecture has an equivalent.

    The verbs work on it; `Run` is the same with the verbs as its methods.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.name

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One JSON object per line and event."""
        return self.folder / "metrics.jsonl"

    @property
    def stop_file(self) -> Path:
        """A file that asks the run's training to save and end, wherever it runs."""
        return self.folder / "stop"

    @property
    def has_begun(self) -> bool:
        """Whether the folder holds clearhead.toml."""
        return (self.folder / RUN_CONFIG).exists()

    @property
    def config(self) -> RunConfig:
        """Every option of the run.

        Raises:
            DataError: clearhead.toml is missing or damaged.
        """
        path = self.folder / RUN_CONFIG
        if not path.is_file():
            raise DataError(f"{self.folder} is not a run: it has no clearhead.toml")
        try:
            return _read_config(read_bytes(path, MAX_CONFIG), path)
        except (UsageError, OSError, ValueError) as error:
            raise DataError(
                f"{path} is damaged ({error}); restore it, or start a new run with its options: "
                f"{call('train', config=path)}"
            ) from None

    @property
    def imported_from(self) -> str | None:
        """The folder, or the hub's name, that the model was imported from; None for a run that was trained here."""
        source = self.config.data.source
        return source.removeprefix(IMPORTED) if source.startswith(IMPORTED) else None

    @property
    def call_to_train_longer(self) -> str:
        """What doubles the training, for a sentence."""
        return call("resume", self.folder, options={"train.steps": 2 * self.config.train.steps})

    def write_config(self, config: RunConfig) -> None:
        """Write clearhead.toml, whole or not at all."""
        write_text(self.folder / RUN_CONFIG, add_digest(to_toml(config)))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of what the model writes.

        Raises:
            DataError: tokenizer.json is missing or damaged.
        """
        return self.tokenizers[1]

    @property
    def tokenizers(self) -> Tokenizers:
        """Those of what the model reads and of what it writes; one object where they are the same.

        Raises:
            DataError: a file is missing or damaged, or a tokenizer has tokens that the model does not know.
        """
        try:
            if name := first_altered(self.folder, TOKENIZER):  # before anybody parses it
                raise DataError(f"{name} was altered or cut off")
            tokenizers = load_tokenizers(self.folder)
        except DataError as error:
            raise DataError(f"{self.folder} is damaged ({error}); put tokenizer.json back, or train again") from None
        model = self.config.model
        for tokenizer, size in zip(
            tokenizers, (model.source_vocab_size or model.vocab_size, model.vocab_size), strict=True
        ):
            if tokenizer.vocab_size > size:
                raise DataError(
                    f"{self.folder} has a tokenizer of {tokenizer.vocab_size:,} tokens and a model of {size:,}; "
                    "put the tokenizer.json of its training back"
                )
        return tokenizers

    def task(self) -> Task:
        """What the run learns, with the data that it was trained on, as its tokenizers encode it.

        Raises:
            UsageError: the run was imported.
            DataError: the data or a tokenizer is gone, or not the one that the training began with.
        """
        config = self.config
        if self.imported_from is not None:
            raise UsageError(
                f"{self.folder} was imported and has no text of its own; evaluate it on one that you name, or train it "
                f"further with: {call('train', 'my.txt', start_from=self.folder)}"
            )
        task = open_task(config, tokenizers=self.tokenizers)
        try:
            known = (self.folder / TEXT).read_text(encoding="utf-8", errors="replace")
        except OSError:
            known = ""
        if known != _fingerprint(task):
            raise DataError(
                f"{self.config.data.source} or the run's tokenizer.json or {TEXT} is not what the training in "
                f"{self.folder} began with; put it back, or train again"
            )
        return task

    def begin(self, config: RunConfig, task: Task) -> None:
        """Write down what the training goes by. clearhead.toml comes last: with it the folder is a run."""
        write_text(self.folder / TEXT, _fingerprint(task))  # first: it says that what else is here is ours
        temporary = start_folder(self.folder / "tokenizer")
        task.write_tokenizers(temporary, task.tokenizers)
        move_into(self.folder, temporary)
        self.write_config(config)

    def model(self) -> LanguageModel:
        """The model with the lowest held-out loss so far, in evaluation mode on the CPU.

        Raises:
            DataError: none was saved yet, or a file is missing, truncated or altered.
        """
        config = self.config
        fault = self.damage()
        if fault and self._is_beginning:
            raise DataError(
                f"{self.folder} has no model yet, because its training has saved none so far; wait for it, or, where "
                f"it was stopped, go on with: {call('resume', self.folder)}"
            )
        if fault:
            again = f"{call('resume', self.folder)} writes it again if its checkpoints are whole"
            if self.imported_from is not None:
                again = f"import {self.imported_from} again"
            raise DataError(f"{self.folder} is damaged: {fault}; {again}")
        return interop.load(self.folder, config=config.model)

    def save_model(self, model: LanguageModel, tokens: interop.SpecialTokens, *, step: int) -> None:
        """Make `model`, of that step, the run's model: what is generated with, evaluated and exported."""
        temporary = start_folder(self.folder / "model")
        interop.save(temporary, model, tokens)
        replace_model(self.folder, temporary, TOKENIZER, step=step)

    @property
    def model_step(self) -> int:
        """The step at which the run's model was saved; -1 if unknown."""
        return check_model_files(self.folder)[1]

    def damage(self) -> str | None:
        """What is wrong with the run's model files, or None; none of it where a training replaces them meanwhile."""
        return check_model_files(self.folder)[0]

    @property
    def has_model(self) -> bool:
        """Whether a model was saved; whether its files are whole says `damage`, which reads them."""
        return has_model(self.folder)

    @property
    def has_chat_template(self) -> bool:
        """Whether it continues chats: it came with a template for them."""
        return self.config.objective == "causal" and (self.folder / CHAT_TEMPLATE).is_file()

    @property
    def _is_beginning(self) -> bool:
        """Whether what is missing of the model is still to come, or being put there for the first time."""
        saved = (self.folder / WEIGHTS).is_file() or (self.folder / MANIFEST).is_file()
        return not saved or (not self.has_model and self.is_training)

    @property
    def is_training(self) -> bool:
        """Whether a process writes to it."""
        try:
            if (self.folder / LOCK).exists():
                FileLock(self.folder / LOCK).acquire(timeout=0).lock.release()
        except Timeout:
            return True
        except OSError:
            return False  # not ours to write, so not ours to ask
        return False

    def records(self) -> Iterator[dict[str, Any]]:
        """What metrics.jsonl holds, without lines that are damaged or that a crash cut off."""
        if not self.metrics.is_file():
            return
        with self.metrics.open(encoding="utf-8", errors="replace") as lines:
            yield from filter(None, map(record_of, lines))

    @property
    def has_damaged_records(self) -> bool:
        """Whether metrics.jsonl is missing, or has lines that `records` leaves out."""
        if not self.metrics.is_file():
            return True
        with self.metrics.open(encoding="utf-8", errors="replace") as lines:
            return not all(map(record_of, lines))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run, so that no other process writes to it.

        Raises:
            ClearheadError: another process is writing to it, or the system refuses to write.
        """
        lock = FileLock(self.folder / LOCK)
        try:
            with lock.acquire(timeout=PATIENCE):
                yield
        except Timeout:
            raise ClearheadError(
                f"another process is training in {self.folder}; wait for it, or use another `out`"
            ) from None
        except BrokenPipeError:
            raise  # the trouble is with whoever read the output
        except OSError as error:
            raise ClearheadError(
                f"cannot write in {self.folder} ({error.strerror or error}); fix that, then continue from what "
                f"was saved with: {call('resume', self.folder)}"
            ) from error


def _read_config(content: bytes, path: Path) -> RunConfig:
    """The options in what a run's clearhead.toml, at `path`, holds.

    Raises:
        UsageError: it is not what was written, or not what this version understands.
    """
    if not digest_matches(content):
        raise UsageError("it was changed after it was written, or cut off")
    return RunConfig.read(parse_toml(content, path))


def _fingerprint(task: Task) -> str:
    return json.dumps({"fingerprint": task.fingerprint}) + "\n"
