import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from clearhead.data.download import download
from clearhead.errors import DataError

CONTENT = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT at /file and, never continuing, at /whole; breaks off after a third at /broken."""

    requests: list[str | None]

    def do_GET(self) -> None:
        requested = self.headers.get("Range")
        self.requests.append(requested)
        start = int(requested.removeprefix("bytes=").removesuffix("-")) if requested and self.path != "/whole" else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : len(CONTENT) // 3 if self.path == "/broken" else None])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Handler.requests = []
    with HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join(timeout=100)


def test_a_file_is_fetched_once(server: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    for _ in range(2):
        assert download(f"{server}/file", SHA256, path).read_bytes() == CONTENT
    assert Handler.requests == [None]
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]


@pytest.mark.parametrize("have", [1, 1000, len(CONTENT) - 1, len(CONTENT)])
def test_a_broken_download_continues(server: str, tmp_path: Path, have: int) -> None:
    (tmp_path / "file.txt.part").write_bytes(CONTENT[:have])
    assert download(f"{server}/file", SHA256, tmp_path / "file.txt").read_bytes() == CONTENT
    assert Handler.requests == [f"bytes={have}-"]


def test_a_server_that_cannot_continue_starts_anew(server: str, tmp_path: Path) -> None:
    (tmp_path / "file.txt.part").write_bytes(b"old")
    assert download(f"{server}/whole", SHA256, tmp_path / "file.txt").read_bytes() == CONTENT


def test_what_arrived_before_a_break_is_kept(server: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="again"):
        download(f"{server}/broken", SHA256, tmp_path / "file.txt")
    assert (tmp_path / "file.txt.part").stat().st_size == len(CONTENT) // 3
    assert download(f"{server}/file", SHA256, tmp_path / "file.txt").read_bytes() == CONTENT


def test_other_bytes_than_the_published_are_refused_and_forgotten(server: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not the published file"):
        download(f"{server}/file", "0" * 64, tmp_path / "file.txt")
    assert not list(tmp_path.glob("file*"))
    (tmp_path / "file.txt").write_bytes(b"altered")
    with pytest.raises(DataError, match=r"file\.txt is not the published file"):
        download(f"{server}/file", SHA256, tmp_path / "file.txt")


def test_offline_says_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
        with pytest.raises(DataError, match=r"file\.txt could not be downloaded from .* set CLEARHEAD_DATA"):
            download(url, SHA256, tmp_path / "file.txt")
