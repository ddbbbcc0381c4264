import gzip
import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count, islice
from pathlib import Path

import pytest
from parallel_helpers import made_pairs

from clearhead.config import DataConfig
from clearhead.data import PAIR_CORPORA, pairs, prepare_pairs, read_pairs
from clearhead.data.download import download
from clearhead.data.parallel import corpora
from clearhead.errors import DataError

CONTENT = "Zwei Männer.\nEin Hund rennt.\n" * 4000


class Handler(BaseHTTPRequestHandler):
    """Serves what FILES holds, from where it is asked to; breaks off after a third at /broken/."""

    files: dict[str, bytes]
    requests: list[str]

    def do_GET(self) -> None:
        self.requests.append(self.path)
        body = self.files.get(self.path.removeprefix("/broken"))
        if body is None:
            self.send_error(404)
            return
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : len(body) // 3 if self.path.startswith("/broken") else None])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Handler.files, Handler.requests = {}, []
    with HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join(timeout=100)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_what_comes_packed_is_unpacked_and_checked(server: str, tmp_path: Path) -> None:
    Handler.files["/a.de.gz"] = gzip.compress(CONTENT.encode())
    path = tmp_path / "new" / "a.de"
    with pytest.raises(DataError, match="again"):
        download(f"{server}/broken/a.de.gz", sha256(CONTENT.encode()), path)
    for _ in range(2):
        assert download(f"{server}/a.de.gz", sha256(CONTENT.encode()), path).read_text(encoding="utf-8") == CONTENT
    assert Handler.requests == ["/broken/a.de.gz", "/a.de.gz"]
    assert [entry.name for entry in path.parent.iterdir()] == ["a.de"]


BADLY_PACKED = {
    "not packed": CONTENT.encode(),
    "cut short": gzip.compress(CONTENT.encode())[:-20],
    "another file": gzip.compress(b"other"),
    "a bare header": b"\x1f\x8b\x08",
}


@pytest.mark.parametrize("how", BADLY_PACKED)  # by name: what gzip writes holds the time of day
def test_what_is_packed_badly_is_refused_and_forgotten(server: str, tmp_path: Path, how: str) -> None:
    Handler.files["/a.de.gz"] = BADLY_PACKED[how]
    with pytest.raises(DataError, match="not the published file"):
        download(f"{server}/a.de.gz", sha256(b"something else"), tmp_path / "a.de")
    assert not list(tmp_path.glob("a.de*"))


@pytest.fixture
def published(server: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A small corpus in place of the one that is published, on a server of ours; nothing in $CLEARHEAD_DATA."""
    files = {}
    for seed, split in enumerate(("train", "val", "test_2016_flickr")):
        texts = made_pairs(40, seed)
        for language, side in (("de", 0), ("en", 1)):
            files[f"{split}.{language}"] = "".join(f"{pair[side]}\n" for pair in texts).encode()
    monkeypatch.delenv("CLEARHEAD_DATA", raising=False)
    monkeypatch.setattr(corpora, "_MULTI30K", server)
    monkeypatch.setattr(corpora, "_MULTI30K_SHA256", {name: sha256(body) for name, body in files.items()})
    Handler.files = {f"/{name}.gz": gzip.compress(body) for name, body in files.items()}
    return files


def test_multi30k_is_downloaded_and_cut_as_published(published: dict[str, bytes], cache: Path) -> None:
    data = prepare_pairs(DataConfig(source="multi30k", tokenizer="char"))
    assert sorted(Handler.requests) == ["/train.de.gz", "/train.en.gz", "/val.de.gz", "/val.en.gz"]
    assert (len(data.train), data.val_texts) == (40, made_pairs(40, 1))
    assert (data.source, data.target) == ("multi30k", None)
    assert data.notes[1:] == ("held out: multi30k:val",)
    assert prepare_pairs(DataConfig(source=data.source, tokenizer="char")).fingerprint == data.fingerprint
    assert len(Handler.requests) == 4
    assert read_pairs("multi30k") == made_pairs(40, 1)
    assert read_pairs("multi30k:test_2016_flickr") == made_pairs(40, 2)
    assert read_pairs("multi30k:test_2016_flickr", reverse=True) == [(b, a) for a, b in made_pairs(40, 2)]
    assert len(Handler.requests) == 6
    turned = prepare_pairs(DataConfig(source="multi30k", tokenizer="char", reverse=True))
    assert turned.val_texts == [(b, a) for a, b in data.val_texts]
    split = prepare_pairs(DataConfig(source="multi30k:test_2016_flickr", tokenizer="char"))
    assert (len(split.train), len(split.val), split.source) == (36, 4, "multi30k:test_2016_flickr")


def test_multi30k_of_ones_own_is_checked(
    published: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, body in published.items():
        (tmp_path / "multi30k").mkdir(exist_ok=True)
        (tmp_path / "multi30k" / name).write_bytes(body)
    monkeypatch.setenv("CLEARHEAD_DATA", str(tmp_path))
    assert read_pairs("multi30k:val") == made_pairs(40, 1)
    assert Handler.requests == []
    (tmp_path / "multi30k" / "val.en").write_bytes(b"altered\n")
    with pytest.raises(DataError, match=r"val\.en is not the published file"):
        read_pairs("multi30k:val")


def test_offline_says_where_to_put_the_file(published: dict[str, bytes]) -> None:
    Handler.files = {}
    with pytest.raises(DataError, match=r"train\.de could not be .* as multi30k/train\.de and set CLEARHEAD_DATA"):
        prepare_pairs(DataConfig(source="multi30k"))


def test_multi30k_is_the_known_corpus() -> None:
    folder = os.environ.get("CLEARHEAD_DATA", "")
    if not folder or not (Path(folder) / "multi30k" / "train.de").exists():
        pytest.skip("CLEARHEAD_DATA names no folder with multi30k")
    sizes = {split: len(read_pairs(f"multi30k:{split}")) for split in PAIR_CORPORA["multi30k"].splits}
    assert sizes == {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000}
    assert read_pairs("multi30k:train")[2] == (
        "Ein kleines Mädchen klettert in ein Spielhaus aus Holz.",
        "A little girl climbing into a wooden playhouse.",
    )


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Endless numbered sentences in place of the grammar's, and few of them; the splits that were drawn."""
    splits: list[str] = []

    def sentence_pairs(split: str, seed: int) -> Iterator[tuple[str, str]]:
        splits.append(split)
        return ((f"{split} {i} of {seed}", f"{seed}, {split}, {i}") for i in count())

    monkeypatch.setattr(pairs, "sentence_pairs", sentence_pairs)
    monkeypatch.setattr(pairs, "VERSION", 7)
    monkeypatch.setattr(corpora, "_PAIRS", {"train": 500, "seen": 20, "unseen": 10})
    return splits


def test_the_pairs_of_the_grammar_are_cut_by_its_splits(drawn: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    data = prepare_pairs(DataConfig(source="pairs", tokenizer="char"))
    assert (len(data.train), len(data.val), data.n_skipped) == (500, 20, 0)
    assert data.val_texts == read_pairs("pairs") == read_pairs("pairs:seen")
    assert data.val_texts[3] == ("seen 3 of 1", "1, seen, 3")
    assert data.notes[1:] == ("held out: pairs:seen",)
    prepare_pairs(DataConfig(source="pairs", tokenizer="char", reverse=True))
    assert drawn == ["train", "seen"]  # once each, however often they are read
    assert len(read_pairs("pairs:unseen")) == 10
    monkeypatch.setattr(pairs, "VERSION", 8)
    assert prepare_pairs(DataConfig(source="pairs", tokenizer="char")).fingerprint != data.fingerprint


@pytest.mark.campaign
def test_the_grammar_has_the_splits_and_no_tabs_in_them(cache: Path) -> None:
    assert set(PAIR_CORPORA["pairs"].splits) == set(pairs.SPLITS)
    sentence_pairs = read_pairs("pairs:seen")
    assert sentence_pairs == list(islice(pairs.sentence_pairs("seen", 1), 1_000))


def test_every_corpus_is_listed_under_its_name() -> None:
    for name, corpus in PAIR_CORPORA.items():
        assert corpus.name == name
        assert corpus.validation in corpus.splits[1:]
        assert corpus.about
        assert ":" not in name
