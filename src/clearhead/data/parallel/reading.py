"""Sentence pairs as a stream: two files side by side, two columns, or objects."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, Self

from clearhead.data.documents import digest, json_strings, read_lines
from clearhead.errors import DataError


class Pair(NamedTuple):
    """A sentence and its translation, without outer whitespace, and the number of their line, from 1."""

    line: int
    source: str
    target: str


@dataclass(frozen=True)
class PairSource:
    """Pairs that can be read again and again.

    `name` and `target` open the same pairs again, from any folder; `identity()` is a digest of the content, whatever
    its place and date; `pairs()` reads them from the start.
    """

    name: str
    target: str | None
    identity: Callable[[], str]
    pairs: Callable[[], Iterator[Pair]]

    def reversed(self) -> Self:
        """The same pairs, each with its sides exchanged."""

        def pairs() -> Iterator[Pair]:
            return (Pair(line, target, source) for line, source, target in self.pairs())

        return replace(self, identity=lambda: f"{self.identity()} reversed", pairs=pairs)


def side_by_side(source: Path, target: Path) -> PairSource:
    """Two files in which the same line is the same sentence; U+2028 and its like end no line.

    Raises:
        DataError: when they are read: their numbers of lines differ, or one of them is no text.
    """

    def pairs() -> Iterator[Pair]:
        lines = zip_longest(read_lines(source), read_lines(target))
        for number, (left, right) in enumerate(lines, start=1):
            if left is None or right is None:
                longer = f"{number + sum(1 for _ in lines):,}"
                n_source, n_target = (f"{number - 1:,}", longer) if left is None else (longer, f"{number - 1:,}")
                raise DataError(
                    f"{source} has {n_source} lines and {target} has {n_target}; "
                    "sentence pairs need as many on both sides, line by line"
                )
            yield Pair(number, left.strip(), right.strip())

    return PairSource(str(source), str(target), lambda: digest("two files", [source, target]), pairs)


def two_columns(path: Path) -> PairSource:
    """A file in which every line is a sentence, a tab and its translation. A blank line is a pair of empty sentences.

    Raises:
        DataError: when it is read: a line has another number of columns, or the file is no text.
    """

    def pairs() -> Iterator[Pair]:
        for number, line in enumerate(read_lines(path), start=1):
            columns = line.split("\t") if line.strip() else ["", ""]
            if len(columns) != 2:
                count = f"{len(columns)} columns" if len(columns) > 1 else "one column"
                raise DataError(f"{path}, line {number}: {count}; two columns are needed: source, tab, target")
            yield Pair(number, columns[0].strip(), columns[1].strip())

    return PairSource(str(path), None, lambda: digest("two columns", [path]), pairs)


def objects(path: Path) -> PairSource:
    """A .jsonl file: in every line an object with a "source" and a "target"; blank lines are passed over.

    Raises:
        DataError: when it is read: a line is something else, or the file is no text.
    """

    def pairs() -> Iterator[Pair]:
        for number, (source, target) in json_strings(path, ("source", "target")):
            yield Pair(number, source.strip(), target.strip())

    return PairSource(str(path), None, lambda: digest("objects", [path]), pairs)
