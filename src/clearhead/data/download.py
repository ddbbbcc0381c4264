"""A named file from the network: checked, resumed where it broke off, and never asked for twice."""

import gzip
import http.client
import os
import shutil
import urllib.error
import urllib.request
import zlib
from pathlib import Path

from clearhead.cache import writing
from clearhead.data.documents import unreadable
from clearhead.errors import DataError
from clearhead.files import finish_file
from clearhead.files import sha256 as sha256_of

_TIMEOUT = 30  # seconds without a byte
_BLOCK = 1 << 16


def published(name: str, url: str, sha256: str, cache: Path) -> Path:
    """A published file: $CLEARHEAD_DATA/NAME where that is, else a download that is kept in the cache.

    Raises:
        DataError: it is not the published file, or there is none and no connection.
    """
    own = Path(os.environ.get("CLEARHEAD_DATA", "")) / name
    if os.environ.get("CLEARHEAD_DATA") and own.exists():
        return checked(own, sha256)
    return download(url, sha256, cache / "downloads" / name, name=name)


def download(url: str, sha256: str, path: Path, *, name: str | None = None) -> Path:
    """The file at `path`, downloaded if it is not there yet. What arrived before a break is kept beside it.

    What a URL that ends in .gz sends is unpacked; the SHA-256 is that of the unpacked file. A person who puts the file
    into $CLEARHEAD_DATA by hand is told to call it `name`.

    Raises:
        DataError: no connection, or the bytes are not the ones that were published.
    """
    if path.exists():
        return checked(path, sha256)
    partial = path.with_name(path.name + ".part")
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _receive(url, partial)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", None) or error
            raise DataError(
                f"{path.name} could not be downloaded from {url} ({reason}); try again with a connection, "
                f"or put the file into a folder as {name or path.name} and set CLEARHEAD_DATA to that folder"
            ) from None
        if url.endswith(".gz"):
            _unpack(partial)
        if sha256_of(partial) != sha256:
            partial.unlink()
            raise DataError(f"what {url} sent is not the published file (its SHA-256 differs); try again later")
        finish_file(partial, path)
    return path


def _unpack(packed: Path) -> None:
    """Put the content of a gzip file in its place; one that is damaged stays, for no checksum fits it."""
    unpacked = packed.with_name(packed.name + ".unpacked")
    try:
        with gzip.open(packed) as file, unpacked.open("wb") as copy:
            shutil.copyfileobj(file, copy)
        unpacked.replace(packed)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        pass
    finally:
        unpacked.unlink(missing_ok=True)


def checked(path: Path, sha256: str) -> Path:
    """The path, if its content is the published one.

    Raises:
        DataError: it cannot be read, or it is another file.
    """
    try:
        digest = sha256_of(path)
    except OSError as error:
        raise unreadable(path, error) from None
    if digest != sha256:
        raise DataError(
            f"{path} is not the published file (SHA-256 {digest[:8]}..., not {sha256[:8]}...); "
            "remove it, or give its path instead of the corpus name to use it as it is"
        )
    return path


def _receive(url: str, partial: Path) -> None:
    """Append what is missing; a server that cannot continue sends everything, and the file starts anew."""
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with (
            urllib.request.urlopen(request, timeout=_TIMEOUT) as response,
            partial.open("ab" if response.status == 206 else "wb") as file,
        ):
            missing = int(response.headers.get("Content-Length") or 0)
            while block := response.read(_BLOCK):
                missing -= file.write(block)
        if missing > 0:
            raise ConnectionError("the connection broke off")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416:  # 416: there is nothing after what we have
            raise
