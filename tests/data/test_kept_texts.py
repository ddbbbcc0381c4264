import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from data_helpers import PROSE, entries, file
from numpy.typing import NDArray

from clearhead.cache import cache_folder
from clearhead.config import DataConfig
from clearhead.data import Tokenizer, documents, encoded, prepare
from clearhead.errors import DataError


def test_no_more_than_a_batch_is_ever_encoded_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "READ_SIZE", 500)
    monkeypatch.setattr(encoded, "_BATCH", 1000)
    monkeypatch.setattr(encoded, "_PIECE", 100)
    encode_batch, sizes = Tokenizer.encode_batch, list[int]()

    def measured(tokenizer: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        sizes.append(sum(map(len, texts)))
        assert all(len(text) <= 100 for text in texts)
        return encode_batch(tokenizer, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", measured)
    text = "no line ends here and so it goes on " * 1000
    prepare(DataConfig(source=file(tmp_path, text)))
    assert sum(sizes) == len(text)
    assert max(sizes) <= 1100


@pytest.mark.campaign
@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_a_large_file_needs_little_memory(tmp_path: Path, tokenizer: str) -> None:
    path = tmp_path / "line.txt"
    with path.open("w", encoding="utf-8") as text:
        for i in range(30_000):
            text.write(f"{i} " + "and so it goes on without the end of a line " * (200 if tokenizer == "char" else 40))
    script = (
        "import resource, sys; from clearhead.config import DataConfig;"
        "from clearhead.data import prepare, training_batch;"
        "rss = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024; before = rss();"
        "data = prepare(DataConfig(source=sys.argv[1], tokenizer=sys.argv[2]));"
        "[training_batch(data.train, block_size=256, batch_size=32, seed=0, step=s) for s in range(1000)];"
        "print(rss() - before)"
    )
    command = [sys.executable, "-c", script, str(path), tokenizer]
    megabytes = int(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=100).stdout)
    assert megabytes < 200, f"{megabytes} MB for a file of {path.stat().st_size >> 20} MB"


def test_a_second_run_reads_what_the_first_made(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(DataConfig(source=file(tmp_path), tokenizer="bpe"))
    moved = file(tmp_path, PROSE, "elsewhere.md")
    monkeypatch.setattr("clearhead.data.preparation._make", None)  # would fail if it were called
    shares: list[float] = []
    second = prepare(DataConfig(source=moved, tokenizer="bpe"), on_progress=shares.append)
    assert shares == [1.0]
    assert second.fingerprint == first.fingerprint
    assert second.notes == first.notes
    assert np.array_equal(second.train, first.train)
    assert len(entries(cache)) == 1


def test_another_content_cut_or_tokenizer_is_another_entry(tmp_path: Path, cache: Path) -> None:
    configs = [
        DataConfig(source=file(tmp_path)),
        DataConfig(source=file(tmp_path, PROSE + "x", "b.txt")),
        DataConfig(source=file(tmp_path), val_fraction=0.2),
        DataConfig(source=file(tmp_path), tokenizer="bpe"),
        DataConfig(source=file(tmp_path), tokenizer="bpe", bpe_vocab_size=270),
    ]
    assert len({prepare(config).fingerprint for config in configs}) == len(configs)
    assert len(entries(cache)) == len(configs)


def test_the_fingerprint_does_not_ask_how_the_tokenizer_came(tmp_path: Path) -> None:
    config = DataConfig(source=file(tmp_path), tokenizer="bpe")
    trained = prepare(config)
    trained.tokenizer.save(tmp_path / "run")
    for again in (
        prepare(config, tokenizer=trained.tokenizer, cache=tmp_path / "other"),
        prepare(DataConfig(source=config.source, tokenizer=str(tmp_path / "run"))),
        prepare(DataConfig(source=config.source, tokenizer=str(tmp_path / "run" / "tokenizer.json"))),
    ):
        assert again.fingerprint == trained.fingerprint
        assert np.array_equal(again.val, trained.val)


@pytest.mark.parametrize("kind", ["auto", "char", "bpe"])
def test_a_run_finds_the_text_that_it_was_trained_on(tmp_path: Path, cache: Path, kind: str) -> None:
    config = DataConfig(source=file(tmp_path), tokenizer=kind)
    trained = prepare(config)
    trained.tokenizer.save(tmp_path / "run")
    tokenizer = Tokenizer.load(tmp_path / "run")
    assert prepare(config, tokenizer=tokenizer).fingerprint == trained.fingerprint
    (entry,) = entries(cache)
    (entry / "val.bin").unlink()  # an entry that is not whole is not taken for one
    assert np.array_equal(prepare(config, tokenizer=tokenizer).val, trained.val)
    other = Tokenizer.characters(PROSE + "z")
    assert prepare(config, tokenizer=other).tokenizer.fingerprint == other.fingerprint


@pytest.mark.parametrize("name", ["train.bin", "val.bin", "facts.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["gone", "short", "empty"])
def test_a_damaged_entry_is_made_again(tmp_path: Path, cache: Path, name: str, damage: str) -> None:
    config = DataConfig(source=file(tmp_path))
    good = prepare(config).train.tolist()
    path = entries(cache)[0] / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-2] if damage == "short" else b"")
    assert prepare(config).train.tolist() == good


def test_progress_rises_from_0_to_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "_BATCH", 100)
    monkeypatch.setattr(encoded, "_PIECE", 61)
    shares: list[float] = []
    prepare(DataConfig(source=file(tmp_path)), on_progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert len(shares) > 5


def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = file(tmp_path)

    def grow(share: float) -> None:
        with open(source, "a", encoding="utf-8") as text:
            text.write("e")

    with pytest.raises(DataError, match="changed while it was read"):
        prepare(DataConfig(source=source), on_progress=grow)


def test_a_full_disk_is_a_sentence_and_leaves_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(side: encoded.Side, part: encoded.Encoded) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(encoded.Side, "write", full)
    with pytest.raises(DataError, match=r"no space left on the disk of .*; free some, or set CLEARHEAD_CACHE"):
        prepare(DataConfig(source=file(tmp_path)))
    assert entries(cache) == []


def test_a_cache_that_cannot_be_written_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "my.txt" / "cache"  # below a file; mode bits would not stop a superuser
    config = DataConfig(source=file(tmp_path))
    with pytest.raises(DataError, match=r"cannot write in .*cache .*; set CLEARHEAD_CACHE"):
        prepare(config, cache=blocked)
    monkeypatch.setenv("CLEARHEAD_CACHE", str(blocked))
    with pytest.raises(DataError, match=r"cannot write in .*cache"):
        prepare(config)


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [("linux", "XDG_CACHE_HOME", "here/clearhead"), ("win32", "LOCALAPPDATA", "here/clearhead")],
)
def test_the_platform_says_where_caches_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, variable: str, expected: str
) -> None:
    monkeypatch.delenv("CLEARHEAD_CACHE")
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setenv(variable, str(tmp_path / "here"))
    assert cache_folder() == tmp_path / expected
    (tmp_path / "file").touch()
    monkeypatch.setenv(variable, str(tmp_path / "file"))  # nothing can be made below a file
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cache_folder().parent == tmp_path


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows gives each user temporary files of their own")
def test_without_a_home_the_cache_is_a_folder_that_nobody_else_can_fill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("CLEARHEAD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = cache_folder()
    assert folder == cache_folder() == tmp_path / f"clearhead-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with pytest.raises(DataError, match="is not yours alone; remove it, or set CLEARHEAD_CACHE"):
        cache_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    with pytest.raises(DataError, match="is not yours alone"):
        cache_folder()


def test_a_home_that_nobody_has_is_a_name_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"there is no file, folder or corpus '~nosuchuser/x\.txt'"):
        prepare(DataConfig(source="~nosuchuser/x.txt"))
    with pytest.raises(DataError, match="there is no tokenizer at ~nosuchuser"):
        prepare(DataConfig(source=file(tmp_path), tokenizer=str(Path("~nosuchuser", "tokenizer.json"))))
    assert cache_folder(Path("~nosuchuser")) == tmp_path / "~nosuchuser"


@pytest.mark.campaign
def test_a_killed_preparation_leaves_nothing_wrong(tmp_path: Path, cache: Path) -> None:
    source = file(tmp_path, PROSE * 2000)
    script = (
        "import os, sys; from clearhead.config import DataConfig; from clearhead.data import prepare;"
        "prepare(DataConfig(source=sys.argv[1]), on_progress=lambda share: share > 0.5 and os._exit(9))"
    )
    assert subprocess.run([sys.executable, "-c", script, source], check=False, timeout=100).returncode == 9
    assert len(entries(cache)) == 2, "what there is of the text, and the lock on it"
    data = prepare(DataConfig(source=source))
    whole = prepare(DataConfig(source=source), cache=tmp_path / "other")
    assert np.array_equal(data.train, whole.train)
    assert np.array_equal(data.val, whole.val)
    assert len(entries(cache)) == 1
    left = cache / "texts" / ".unfinished-x"
    left.mkdir()
    os.utime(left, (0, 0))  # long ago
    prepare(DataConfig(source=source, val_fraction=0.2))
    assert left not in entries(cache)
    assert len(entries(cache)) == 2
