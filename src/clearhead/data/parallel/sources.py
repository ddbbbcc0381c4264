"""What a person may call sentence pairs: two files, a table of two columns, a .jsonl, the name of a corpus."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from clearhead.cache import cache_folder
from clearhead.config import DataConfig
from clearhead.data.compression import kind_of
from clearhead.data.corpora import CORPORA
from clearhead.data.documents import json_strings, unreadable
from clearhead.data.parallel.corpora import PAIR_CORPORA
from clearhead.data.parallel.reading import PairSource, objects, side_by_side, two_columns
from clearhead.data.sources import nearby
from clearhead.errors import DataError

_TABLES = (".tsv", ".tab")
_OBJECTS = (".jsonl", ".ndjson")
_WHAT = "give two files, the other one as data.target, a .tsv of two columns, or a .jsonl with 'source' and 'target'"


class Opened(NamedTuple):
    """Pairs to learn from, and those to validate on where somebody has already chosen them."""

    train: PairSource
    val: PairSource | None


def is_pairs(config: DataConfig) -> bool:
    """Whether what the config names holds sentence pairs rather than a text. Says nothing about what is wrong in it."""
    if config.target is not None or config.source.partition(":")[0] in PAIR_CORPORA:
        return True
    path = Path(os.path.expanduser(config.source))
    if kind_of(path) in _OBJECTS and path.is_file():  # a pipe can be read only once
        try:
            return next(json_strings(path, ("source", "target")), None) is not None
        except DataError:
            return False
    return kind_of(path) in _TABLES


def open_pairs(source: str, target: str | None, cache: Path, *, reverse: bool = False) -> Opened:
    """The pairs that `source`, and `target` where it is given, name. A corpus wins over a file of that name.

    Args:
        source: a corpus, a split of it as CORPUS:SPLIT, a file with both sides, or the file of the first side.
        target: the file of the other side, line by line.
        cache: folder for downloads.
        reverse: exchange the sides.

    Raises:
        DataError: there is nothing of that name, or it holds one side only.
    """
    if source.partition(":")[0] in PAIR_CORPORA:
        if target is not None:
            raise DataError(f"the corpus {source} holds both sides; leave out the target {target}")
        opened = _open_corpus(source, cache)
    else:
        opened = Opened(_open_files(source, target), None)
    if reverse:
        return Opened(opened.train.reversed(), opened.val and opened.val.reversed())
    return opened


def read_pairs(
    source: str, target: str | None = None, *, reverse: bool = False, cache: Path | None = None
) -> list[tuple[str, str]]:
    """All the pairs to evaluate on, (source, target), empty sentences too, so that lines stay lines.

    Of a corpus that is its validation split, unless another is named.

    Raises:
        DataError: there is nothing of that name, its sides differ in their number of lines, or it is empty.
    """
    train, val = open_pairs(source, target, cache_folder(cache), reverse=reverse)
    pairs = [(pair.source, pair.target) for pair in (val or train).pairs()]
    if not pairs:
        raise DataError(f"{source} is empty; there is nothing to evaluate on")
    return pairs


def _open_corpus(source: str, cache: Path) -> Opened:
    name, named, split = source.partition(":")
    corpus = PAIR_CORPORA[name]
    if not named:
        train = corpus.open(corpus.splits[0], cache)
        return Opened(PairSource(name, None, train.identity, train.pairs), corpus.open(corpus.validation, cache))
    if split not in corpus.splits:
        raise DataError(f"the corpus {name} has no split '{split}'; its splits are {', '.join(corpus.splits)}")
    return Opened(corpus.open(split, cache), None)


def _open_files(source: str, target: str | None) -> PairSource:
    first, *other = _paths(source, target)
    kind = kind_of(first)
    if other:
        if kind in (*_TABLES, *_OBJECTS):
            raise DataError(f"{first} should already hold both sides; leave out the target {target}")
        return side_by_side(first, other[0])
    if kind in _TABLES:
        return two_columns(first)
    if kind in _OBJECTS:
        return objects(first)
    raise DataError(f"{first} is one side of sentence pairs; {_WHAT}")


def _paths(*names: str | None) -> Iterator[Path]:
    """The files of those names; None is no name."""
    for name in names:
        if name is None:
            continue
        if name == "-":
            raise DataError(f"sentence pairs cannot come from standard input, for they are read twice; {_WHAT}")
        path = Path(os.path.expanduser(name)).absolute()
        try:
            is_file, other = path.is_file(), path.exists()
        except OSError as error:
            raise unreadable(path, error) from None
        if not is_file and name in CORPORA:
            raise DataError(f"the corpus {name} is a text without translations; {_names()}")
        if not is_file and other:
            raise DataError(f"{path} is not a file; {_WHAT}")
        if not is_file:
            raise DataError(f"there is no file or corpus of sentence pairs '{name}'; {_nearby(name, path)}")
        yield path


def _nearby(name: str, path: Path) -> str:
    return nearby(name, path, PAIR_CORPORA) or _names()


def _names() -> str:
    return f"the corpora of sentence pairs are {', '.join(PAIR_CORPORA)}"
