"""Prepared data in the cache, texts and sentence pairs alike: found where an earlier call left it, or made."""

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from clearhead.cache import facts_of, keep, writing
from clearhead.data.tokenizers import Tokenizer
from clearhead.errors import DataError
from clearhead.files import damage

T = TypeVar("T")

Facts = dict[str, Any]
Progress = Callable[[float], None]


def digest(*parts: object) -> str:
    """Equal where all the parts, as text, are."""
    return hashlib.sha256(json.dumps([*map(str, parts)]).encode()).hexdigest()


def fingerprints(tokenizers: Sequence[Tokenizer]) -> list[str]:
    """Those of each tokenizer, in order."""
    return [tokenizer.fingerprint for tokenizer in tokenizers]


@dataclass(frozen=True)
class PreparedData(Generic[T]):
    """Where the cache keeps one text, or one corpus of pairs, by what its tokenizers are.

    Attributes:
        folder: of everything of this kind.
        content: what was read and where it is cut; other content has other entries.
        token_files: names in an entry whose bytes are checked when they are read, and only their size before.
        read: opens an entry.
        tokenizers: those of what `read` returned.
    """

    folder: Path
    content: Sequence[object]
    token_files: Collection[str]
    read: Callable[[Path, Facts], T]
    tokenizers: Callable[[T], Sequence[Tokenizer]]

    def find_or_make(
        self,
        choices: Sequence[object],
        known: Sequence[Tokenizer] | None,
        make: Callable[[Path], Facts],
        *,
        continued: bool = False,
    ) -> T:
        """What these choices left in the cache; made anew where there is nothing, or where it is damaged.

        Args:
            choices: the options that say which tokenizers to make.
            known: tokenizers in place of these; where the choices led to the same ones, that entry serves.
            make: fills an entry, and returns what to remember about it.
            continued: `make` may begin with what a killed process left of the entry.

        Raises:
            DataError: there is no place for the result, or what `make` raises.
        """
        entry = self._entry(*choices)
        prepared = self._find(entry)
        if known is not None:
            names = fingerprints(known)
            if prepared is None or fingerprints(self.tokenizers(prepared)) != names:
                entry = self._entry(*names)
                prepared = self._find(entry)
        if prepared is None:
            with writing(self.folder):
                keep(entry, make, continued=continued)
            prepared = self._find(entry)
            assert prepared is not None, "what was just made can be opened"
        return prepared

    def _entry(self, *choices: object) -> Path:
        return self.folder / digest(*self.content, *choices)[:32]

    def _find(self, entry: Path) -> T | None:
        """What the entry holds; None if anything is missing, cut off or altered, as far as opening it tells."""
        if damage(entry, only_sized=self.token_files) is not None:
            return None
        try:
            return self.read(entry, facts_of(entry))
        except (OSError, ValueError, KeyError, TypeError, DataError):
            return None
