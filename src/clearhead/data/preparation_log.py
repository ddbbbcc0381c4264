"""How far a text is prepared: what a process that was killed leaves, and the next one goes on from."""

import json
import os
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clearhead.data.encoded import Side
from clearhead.data.survey import Survey
from clearhead.data.tokenizers import Tokenizer
from clearhead.errors import DataError
from clearhead.files import UNFINISHED, finish_file, read_json

EVERY = 20.0  # seconds between two entries; what takes less than that leaves none
_SURVEY, _PROGRESS = "survey.npz", "progress.json"


@dataclass(frozen=True)
class Kept:
    """Where an earlier process got to: documents encoded; tokens, characters and bytes of each side; the tokenizer."""

    documents: int
    sides: list[tuple[int, int, int]]
    tokenizer: Tokenizer
    notes: list[str]


class PreparationLog:
    """Written beside the token files of an entry of the cache that is being made.

    Attributes:
        folder: of the entry.
        tokenizer, notes: the tokenizer of the text, and what is to be told of it; set before the first entry.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer: Tokenizer | None = None
        self.notes: list[str] = []
        self.tokenizer_is_kept = False
        self.written = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether so much was done since the last entry that it would be a pity to do it again."""
        return time.monotonic() - self.written >= EVERY

    def keep_survey(self, survey: Survey) -> None:
        """What reading the whole text has told."""
        alphabet = np.array([*map(ord, survey.alphabet)], dtype=np.uint32)
        with (self.folder / (UNFINISHED + _SURVEY)).open("wb") as file:
            np.savez(file, lengths=survey.lengths, alphabet=alphabet, n_bytes=np.array(survey.n_bytes))
        self._finish(_SURVEY)

    def survey(self) -> Survey | None:
        """The same, if an earlier process got so far."""
        try:
            with (self.folder / _SURVEY).open("rb") as file, np.load(file, allow_pickle=False) as kept:
                return Survey(kept["lengths"], "".join(map(chr, kept["alphabet"].tolist())), int(kept["n_bytes"]))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def keep(self, documents: int, sides: Sequence[Side]) -> None:
        """So many documents are encoded and written to the files of the two sides."""
        assert self.tokenizer is not None
        if not self.tokenizer_is_kept:
            self.tokenizer.save(self.folder)
            self.tokenizer_is_kept = True
        for side in sides:
            side.file.flush()
            os.fsync(side.file.fileno())
        content = {
            "documents": documents,
            "sides": [[side.tokens, side.characters, side.n_bytes] for side in sides],
            "files": {Path(side.file.name).name: side.file.tell() for side in sides},
            "notes": self.notes,
        }
        (self.folder / (UNFINISHED + _PROGRESS)).write_text(json.dumps(content), encoding="utf-8")
        self._finish(_PROGRESS)

    def read(self) -> Kept | None:
        """What was last kept; None where there is nothing, or the files do not hold it any more."""
        try:
            content = read_json(self.folder / _PROGRESS)
            if any((self.folder / name).stat().st_size < size for name, size in content["files"].items()):
                return None
            first, second = content["sides"]
            tokenizer = Tokenizer.load(self.folder)
            kept = Kept(content["documents"], [tuple(first), tuple(second)], tokenizer, content["notes"])
        except (OSError, ValueError, KeyError, TypeError, DataError):
            return None
        self.tokenizer_is_kept = True
        return kept

    def remove(self) -> None:
        """There is nothing left to go on with: the entry is complete."""
        for name in (_SURVEY, _PROGRESS):
            (self.folder / name).unlink(missing_ok=True)

    def _finish(self, name: str) -> None:
        finish_file(self.folder / (UNFINISHED + name), self.folder / name)
        with suppress(OSError):
            os.utime(self.folder)  # nobody takes it for litter
        self.written = time.monotonic()
