"""What a person may call a text: a file, a folder, a pattern, standard input, the name of a corpus."""

import difflib
import errno
import glob
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from clearhead.cache import sweep, writing
from clearhead.data.compression import READ_SIZE, is_compressed, kind_of
from clearhead.data.corpora import CORPORA
from clearhead.data.documents import (
    RECORD_KINDS,
    TEXT_COLUMN,
    TEXT_KINDS,
    Source,
    files_source,
    refuse_no_text,
    unreadable,
)
from clearhead.data.parallel.corpora import PAIR_CORPORA
from clearhead.errors import DataError
from clearhead.files import RUN_CONFIG, UNFINISHED, finish_file
from clearhead.options import shown
from clearhead.wording import counted

USUAL_EXPANSION = 3  # times its size that a compressed text unpacks to
_MAX_STREAM = 1 << 35  # bytes
_SHARE_OF_DISK = 0.5  # of what is free, that a copy of a stream may take


def open_source(source: str, cache: Path, characters: int | None = None, column: str = TEXT_COLUMN) -> Source:
    """The text that `source` names. A corpus name wins over a file of that name, which is ./NAME.

    Args:
        source: what the person said.
        cache: folder for downloads and for what can be read only once.
        characters: length of a corpus that is made from a grammar.
        column: the key of a .jsonl, or the column of a .parquet, that holds the text.

    Raises:
        DataError: there is nothing of that name, or nothing in it.
    """
    if source == "-":
        kept = _keep(sys.stdin.buffer, Path("standard input"), cache / "streams")
        return files_source(str(kept), [kept])
    if source in CORPORA:
        return CORPORA[source].open(cache, characters)
    path = Path(os.path.expanduser(source)).absolute()
    try:
        if paths := _files_of(path):
            return files_source(str(path), paths, column)
        if path.is_fifo() or _is_terminal(path):
            with path.open("rb") as stream:
                kept = _keep(stream, path, cache / "streams")
            return files_source(str(kept), [kept])
        if path.exists():
            kind = "a socket" if path.is_socket() else "a device"
            raise DataError(f"{path} is {kind}, which holds no text; give a file, a folder or a pipe")
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # somebody gave the text itself
            raise unreadable(path, error) from None
    if source.partition(":")[0] in PAIR_CORPORA:
        raise DataError(f"the corpus {source} is sentence pairs, not a text; the corpora of text are {_names(CORPORA)}")
    if glob.has_magic(source):
        raise DataError(f"no file fits the pattern {shown(source)}")
    close = nearby(source, path, [*CORPORA, *PAIR_CORPORA])
    known = f"the corpora of text are {_names(CORPORA)}; those of sentence pairs: {_names(PAIR_CORPORA)}"
    raise DataError(f"there is no file, folder or corpus {shown(source)}; {close or known}")


def short_name(source: str) -> str:
    """What to call that which is made of it: a file's name without what says its kind, the folder of a pattern."""
    if source == "-":
        return "stdin"
    path = Path(os.path.expanduser(source)).resolve()
    while glob.has_magic(path.name) and not path.exists():
        path = path.parent
    stem = Path(path.stem) if is_compressed(path) else path
    return stem.stem.replace(":", "-")  # of a corpus and its split; Windows has no such file name


def text_bytes(source: str) -> int | None:
    """About how many bytes of text the files of that name hold, before any is read; None where they are not files."""
    if source in CORPORA or source == "-":
        return None
    try:
        paths = _files_of(Path(os.path.expanduser(source)).absolute())
        sizes = [path.stat().st_size * (USUAL_EXPANSION if is_compressed(path) else 1) for path in paths]
    except (OSError, ValueError, DataError):
        return None
    return sum(sizes) if sizes else None


def pipe_of(source: str) -> Path | None:
    """The pipe or terminal that `source` names, which is read to its end and has none until somebody writes to it."""
    path = Path(os.path.expanduser(source)).absolute()
    try:
        return path if source not in CORPORA and (path.is_fifo() or _is_terminal(path)) else None
    except OSError:
        return None  # `open_source` names what is wrong


def _files_of(path: Path) -> list[Path]:
    """The files that a path, or a pattern in its place, names; none where there is nothing of that name."""
    if path.is_dir():
        return _texts_in(path)
    if path.is_file():
        return [path]
    if not glob.has_magic(str(path)):
        return []
    fitting = [Path(name) for name in glob.iglob(str(path), recursive=True)]
    return sorted((file for file in fitting if file.is_file()), key=lambda file: file.as_posix())


def _texts_in(folder: Path) -> list[Path]:
    """Every text below the folder in one order on every system; runs and what is hidden stay out.

    These are its .txt and .md files; where there is no .txt, its .jsonl and .parquet files, beside which an .md is a
    README.
    """
    files: list[Path] = []
    for here, below, names in os.walk(folder):
        if RUN_CONFIG in names and Path(here) != folder:
            below.clear()  # nothing deeper is walked either
            continue
        below[:] = [name for name in below if not name.startswith(".")]
        files += [Path(here, name) for name in names if not name.startswith(".") and Path(here, name).is_file()]
    texts = [path for path in files if kind_of(path) in TEXT_KINDS]
    if not any(kind_of(path) == ".txt" for path in texts):
        texts = [path for path in files if kind_of(path) in RECORD_KINDS] or texts
    if not texts:
        raise DataError(
            f"{folder} holds no .txt, .md, .jsonl or .parquet file (of {counted(len(files), 'file')}); "
            "give the file itself"
        )
    return sorted(texts, key=lambda path: path.relative_to(folder).as_posix())


def nearby(source: str, path: Path, corpora: Iterable[str]) -> str:
    """Asks whether the corpus or the file of the same folder was meant that has nearly this name; '' without one."""
    names = list(corpora)
    try:
        beside = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        beside = []
    close = difflib.get_close_matches(path.name, [*names, *beside], n=1, cutoff=0.5)
    if not close:
        return ""
    return f"did you mean '{close[0] if close[0] in names else Path(source).with_name(close[0])}'?"


def _names(corpora: Iterable[str]) -> str:
    return ", ".join(corpora)


def _is_terminal(path: Path) -> bool:
    """Whether it is what a person types into."""
    if not stat.S_ISCHR(path.stat().st_mode if path.exists() else 0):
        return False
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        return os.isatty(handle)
    finally:
        os.close(handle)


def _keep(stream: BinaryIO, name: Path, folder: Path) -> Path:
    """A copy of what can be read only once, named by its content, because a text is read more than once.

    Raises:
        DataError: it is no text, or has no end.
    """
    digest, size = hashlib.sha256(), 0
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        most = min(_MAX_STREAM, int(_SHARE_OF_DISK * shutil.disk_usage(folder).free))
        with tempfile.NamedTemporaryFile(dir=folder, prefix=UNFINISHED, delete=False) as copy:
            temporary = Path(copy.name)
            try:
                while block := stream.read(READ_SIZE):
                    refuse_no_text(block, size, name)
                    size += len(block)
                    if size > most:
                        raise DataError(
                            f"{name} has no end within {most:,} bytes; write the part that you need to a file"
                        )
                    digest.update(block)
                    copy.write(block)
                copy.close()
                return finish_file(temporary, folder / f"{digest.hexdigest()[:16]}.txt")
            finally:
                temporary.unlink(missing_ok=True)
