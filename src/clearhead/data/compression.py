"""Files that are compressed, gzip or zstd by their name, read as a stream that a hostile one cannot make endless."""

import gzip
import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from clearhead.errors import DataError, UsageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

READ_SIZE = 1 << 20  # bytes read at once
MOST_EXPANSION = 200  # times a file's size that it may unpack to; texts come to 3 to 10, logs to 50
FREE_EXPANSION = 1 << 28  # bytes that any file may unpack to
_ZSTD_WINDOW = 27  # log2 of the bytes that a frame may make us keep: the limit of the command `zstd -d` itself
_MAGIC = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
_NAMES = {".gz": "gzip", ".zst": "zstd"}


def kind_of(path: Path) -> str:
    """What a file holds, by its name, compressed or not: `.txt` of a.txt, of a.txt.gz and of A.TXT.ZST."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in _MAGIC else suffix


def is_compressed(path: Path) -> bool:
    """Whether its name says so."""
    return path.suffix.lower() in _MAGIC


def compression_of(block: bytes) -> str | None:
    """The suffix that a file which begins with this block should have, if it is a compressed one."""
    return next((suffix for suffix, magic in _MAGIC.items() if block.startswith(magic)), None)


def open_bytes(path: Path) -> BinaryIO:
    """What the file holds, unpacked where its name says that it is compressed.

    Raises:
        OSError: it cannot be opened.
        DataError: it is not compressed as its name says; while it is read: it is damaged, cut off, or unpacks to far
            more than any text.
        UsageError: nothing here reads zstd.
    """
    file = path.open("rb")
    suffix = path.suffix.lower()
    if suffix not in _MAGIC:
        return file
    with file:
        begin = file.read(4)
        if begin and not begin.startswith(_MAGIC[suffix]):
            raise DataError(
                f"{path} is not compressed with {_NAMES[suffix]}, as its name says; if it is not compressed at all, "
                f"call it {path.with_suffix('').name}"
            )
        size = file.seek(0, io.SEEK_END)
    return io.BufferedReader(_Unpacked(path, size, *_OPENERS[suffix](path)), READ_SIZE)


class _Unpacked(io.RawIOBase):
    """The content of a compressed file, counted as it comes out."""

    def __init__(self, path: Path, size: int, packed: io.BufferedIOBase, errors: tuple[type[Exception], ...]) -> None:
        self.path, self.packed, self.errors = path, packed, errors
        self.left = FREE_EXPANSION + MOST_EXPANSION * size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """As `io.RawIOBase` has it."""
        view = memoryview(buffer).cast("B")
        try:
            block = self.packed.read(len(view))
        except self.errors as error:
            reason = str(error) or type(error).__name__
            raise DataError(f"{self.path} is damaged or was cut off ({reason}); make or fetch it again") from None
        view[: len(block)] = block
        self.left -= len(block)
        if self.left < 0:
            raise DataError(
                f"{self.path} unpacks to more than {MOST_EXPANSION} times its size, which no text does; "
                "if that is meant, unpack it and give the plain file"
            )
        return len(block)

    def close(self) -> None:
        self.packed.close()
        super().close()


Opened = tuple[io.BufferedIOBase, tuple[type[Exception], ...]]


def _open_gzip(path: Path) -> Opened:
    return gzip.open(path), (EOFError, zlib.error, gzip.BadGzipFile)


def _open_zstd(path: Path) -> Opened:
    """By Python itself from 3.14, else by the package that brings the same module to earlier ones."""
    try:
        from compression import zstd
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            raise UsageError(
                f"{path} is compressed with zstd, which needs an extra: pip install 'clearhead[zstd]'"
            ) from None
    options = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW}
    return zstd.open(path, options=options), (EOFError, zstd.ZstdError)


_OPENERS: dict[str, Callable[[Path], Opened]] = {".gz": _open_gzip, ".zst": _open_zstd}
