"""Text as a stream of documents: files are read in pieces, so that no text has to fit in memory."""

import codecs
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from clearhead.data.compression import READ_SIZE, compression_of, kind_of, open_bytes
from clearhead.data.parquet import parquet_texts
from clearhead.errors import DataError
from clearhead.files import parse_json

TEXT_KINDS = (".txt", ".md")  # a document for each file, in a folder
RECORD_KINDS = (".jsonl", ".ndjson", ".parquet")  # a document for each line or row
TEXT_COLUMN = "text"
MAX_LINE = 1 << 24  # bytes of a .jsonl, characters elsewhere: a line is held in memory several times over
_TEXT_CONTROLS = b"\t\n\r\f\v\b\x1b"  # control bytes that a text may hold
_BINARY_SHARE = 0.1  # a first block with more control bytes than this is no text


class Document(NamedTuple):
    """One text: its name as a message says it, and its characters in pieces."""

    name: str
    pieces: Iterator[str]


@dataclass(frozen=True)
class Source:
    """A text that can be read again and again.

    `name` opens the same source again, from any folder; `identity()` is a digest of the content, whatever its
    place and date; `documents()` reads it from the start.
    """

    name: str
    identity: Callable[[], str]
    documents: Callable[[], Iterator[Document]]


def files_source(name: str, paths: Sequence[Path], column: str = TEXT_COLUMN) -> Source:
    """Files in the order given: each a document, or one per line of a .jsonl and per row of a .parquet.

    Args:
        column: the key or the column that holds the text.
    """
    kinds = [_record_kind(path) for path in paths]
    label = "text" if not any(kinds) else ",".join(kind or "text" for kind in kinds)
    if any(kinds) and column != TEXT_COLUMN:
        label += f" {column}"
    return Source(name, lambda: digest(label, paths), lambda: _documents(paths, column))


def _record_kind(path: Path) -> str | None:
    """`jsonl` or `parquet`; None for a file that is one document."""
    kind = kind_of(path)
    return None if kind not in RECORD_KINDS else "parquet" if kind == ".parquet" else "jsonl"


def read_text(path: Path) -> Iterator[str]:
    r"""The characters of a UTF-8 file in pieces. Newlines stay as they are (`\r\n` too); a byte order mark is dropped.

    Raises:
        DataError: the file cannot be read, is binary, or is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0  # bytes handed to the decoder so far
    try:
        with open_bytes(path) as file:
            while block := file.read(READ_SIZE):
                refuse_no_text(block, offset, path)
                pending = len(decoder.getstate()[0])  # bytes of a character that the last block cut in two
                text = _decode(decoder, block, offset - pending, path)
                yield text.removeprefix("\ufeff") if offset == 0 else text
                offset += len(block)
        _decode(decoder, b"", offset - len(decoder.getstate()[0]), path, final=True)
    except OSError as error:
        raise unreadable(path, error) from None


def read_lines(path: Path) -> Iterator[str]:
    r"""The lines of a UTF-8 file without their ends, which are `\n` or `\r\n`; a last one that has none is a line too.

    U+2028 and its like end no line: they are characters as any other.

    Raises:
        DataError: as `read_text`, or a line is too long.
    """
    held, number = "", 1
    for piece in read_text(path):
        *whole, rest = piece.split("\n")
        for line in whole:
            yield (held + line).removesuffix("\r")
            held, number = "", number + 1
        held += rest
        if len(held) > MAX_LINE:
            raise _too_long(f"{path}, line {number:,}", "characters")
    if held:
        yield held.removesuffix("\r")


def json_strings(path: Path, keys: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """For each object of a .jsonl file the number of its line and what is under those keys; blank lines are none.

    Raises:
        DataError: the file cannot be read, or a line is too long or no object with a string of whole characters under
            every key.
    """
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=1):
                if len(line) > MAX_LINE:
                    raise _too_long(f"{path}, line {number:,}", "bytes")
                whole = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if whole.strip():
                    name = f"{path}, line {number}"
                    record = _json_record(whole, name, keys)
                    yield number, [without_surrogates(_json_string(record, key, name, keys), name) for key in keys]
    except OSError as error:
        raise unreadable(path, error) from None


def _too_long(name: str, unit: str) -> DataError:
    return DataError(f"{name} is longer than {MAX_LINE:,} {unit}; cut it into several lines")


def refuse_no_text(block: bytes, offset: int, path: Path) -> None:
    """Judge a block of what is to be a text by its bytes.

    Raises:
        DataError: it is binary, or holds a NUL.
    """
    if offset == 0:
        _refuse_binary(block, path)
    _refuse_nul(block, offset, path)


def unreadable(path: Path, error: OSError) -> DataError:
    """The sentence for a file that the system does not let us read."""
    return DataError(f"{path} cannot be read: {error.strerror or error}")


def _decode(decoder: codecs.IncrementalDecoder, block: bytes, offset: int, path: Path, final: bool = False) -> str:
    try:
        return decoder.decode(block, final)
    except UnicodeDecodeError as error:
        where = offset + error.start
        raise DataError(
            f"{path} is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {where:,} ({error.reason}); "
            "save the file as UTF-8"
        ) from None


def _refuse_binary(block: bytes, path: Path) -> None:
    """A sentence that fits, rather than a complaint about the first strange byte."""
    if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path} is UTF-16; save it as UTF-8")
    controls = len(block) - len(block.translate(None, bytes(range(32)).translate(None, _TEXT_CONTROLS)))
    if (suffix := compression_of(block)) is not None:
        raise DataError(f"{path} is compressed; call it {path.name}{suffix}, so that it is unpacked when it is read")
    if controls > _BINARY_SHARE * len(block) or (b"\0" in block and not _is_utf8(block)):
        raise DataError(f"{path} is a binary file, not text; give a text file, a folder of them, or a .jsonl file")


def _is_utf8(block: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(block)
    except UnicodeDecodeError:
        return False
    return True


def _refuse_nul(block: bytes, offset: int, path: Path) -> None:
    where = block.find(b"\0")
    if where >= 0:
        raise DataError(f"{path} holds a NUL character at byte {offset + where:,}; remove it")


def _documents(paths: Iterable[Path], column: str) -> Iterator[Document]:
    for path in paths:
        match _record_kind(path):
            case "jsonl":
                lines = ((number, text) for number, (text,) in json_strings(path, (column,)))
                yield from _records(path, "line", lines)
            case "parquet":
                yield from _records(path, "row", _parquet_rows(path, column))
            case _ if any(piece.strip() for piece in read_text(path)):  # as a rule the first piece answers
                yield Document(str(path), read_text(path))


def _records(path: Path, unit: str, texts: Iterable[tuple[int, str]]) -> Iterator[Document]:
    for number, text in texts:
        if text.strip():
            yield Document(f"{path}, {unit} {number}", iter([text]))


def _parquet_rows(path: Path, column: str) -> Iterator[tuple[int, str]]:
    try:
        for number, text in parquet_texts(path, column):
            name = f"{path}, row {number:,}"
            if len(text) > MAX_LINE:
                raise _too_long(name, "characters")
            yield number, without_surrogates(text, name)
    except OSError as error:
        raise unreadable(path, error) from None


def _json_record(line: bytes, name: str, keys: tuple[str, ...]) -> object:
    try:
        return parse_json(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: not UTF-8 at byte {error.start:,} of the line; save the file as UTF-8") from None
    except ValueError as error:
        needed = " and ".join(f"a '{key}'" for key in keys)
        raise DataError(f"{name}: not JSON ({error}); every line is an object with {needed}") from None


def _json_string(record: object, key: str, name: str, keys: tuple[str, ...]) -> str:
    text = record.get(key) if isinstance(record, dict) else None
    if not isinstance(text, str):
        example = json.dumps(dict.fromkeys(keys, "..."))
        raise DataError(f"{name}: no '{key}' that is a string; every line is an object like {example}")
    return text


def without_surrogates(text: str, name: str) -> str:
    r"""The same text, which a JSON escape such as \ud800 has not spoiled.

    Raises:
        DataError: it holds half of a surrogate pair, which is no character, or a NUL.
    """
    if "\0" in text:
        raise DataError(f"{name}: a NUL character at offset {text.index(chr(0)):,} of the text; remove it")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name}: a lone surrogate U+{ord(text[error.start]):04X} at offset {error.start:,} of the text "
            "is half a character; remove it or complete its pair"
        ) from None
    return text


def digest(kind: str, paths: Iterable[Path]) -> str:
    """SHA-256 over the files' contents, with their lengths between them so that boundaries count."""
    total = hashlib.sha256(kind.encode())
    for path in paths:
        try:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise unreadable(path, error) from None
    return total.hexdigest()
