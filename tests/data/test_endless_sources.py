"""What has no end, or a line that has none: a sentence, little memory, and nothing left behind."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from data_helpers import PROSE

from clearhead.config import DataConfig
from clearhead.data import documents, prepare, prepare_pairs, sources
from clearhead.errors import DataError

POSIX = pytest.mark.skipif(os.name == "nt", reason="Windows has no such devices")


def left_in(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


@POSIX
@pytest.mark.parametrize("device", ["/dev/full", "/dev/zero", "/dev/urandom", "/dev/null"])
def test_a_device_is_no_text(device: str, cache: Path) -> None:
    with pytest.raises(DataError, match=f"{device} is a device, which holds no text; give a file, a folder or a pipe"):
        prepare(DataConfig(source=device))
    assert not left_in(cache)


@POSIX
def test_a_socket_is_no_text(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("here")
        with pytest.raises(DataError, match="here is a socket, which holds no text"):
            prepare(DataConfig(source="here"))
    assert not left_in(cache)


def from_standard_input(source: Path | str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(source, encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdin", stream)
        prepare(DataConfig(source="-"))


@POSIX
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_no_text_from_standard_input_is_refused_at_its_first_block(
    device: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="standard input"):
        from_standard_input(device, monkeypatch)
    assert not left_in(cache)


def write_without_end(path: Path) -> None:
    try:
        with path.open("wb") as pipe:
            while True:
                pipe.write(b"and so it goes on\n" * 1000)
    except BrokenPipeError:
        return


@POSIX
def test_a_pipe_without_an_end_is_refused(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_MAX_STREAM", 3_000_000)
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=write_without_end, args=[tmp_path / "pipe"])
    writer.start()
    try:
        with pytest.raises(
            DataError, match="pipe has no end within 3,000,000 bytes; write the part that you need to a f"
        ):
            prepare(DataConfig(source=str(tmp_path / "pipe")))
    finally:
        writer.join(timeout=10)
    assert not left_in(cache)


@POSIX
def test_a_pipe_with_an_end_is_a_text(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=[PROSE])
    writer.start()
    data = prepare(DataConfig(source=str(tmp_path / "pipe")))
    writer.join(timeout=10)
    assert data.train_characters + data.val_characters == len(PROSE)


def test_what_a_killed_process_left_of_a_stream_goes(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (cache / "streams").mkdir(parents=True)
    old = cache / "streams" / ".unfinished-x"
    old.write_text("left", encoding="utf-8")
    os.utime(old, (0, 0))
    (tmp_path / "in").write_text(PROSE, encoding="utf-8")
    from_standard_input(tmp_path / "in", monkeypatch)
    assert not old.exists()


LONG = {
    "text.jsonl": '{"text": "' + "a" * 5000 + '"}\n',
    "pairs.jsonl": '{"source": "a", "target": "' + "a" * 5000 + '"}\n',
    "pairs.tsv": "a\t" + "a" * 5000 + "\n",
}


@pytest.mark.parametrize("name", LONG)
def test_a_line_that_is_too_long_is_a_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_LINE", 1000)
    monkeypatch.setattr(documents, "READ_SIZE", 100)
    short = {"text.jsonl": '{"text": "b"}\n', "pairs.jsonl": '{"source": "b", "target": "c"}\n', "pairs.tsv": "b\tc\n"}
    (tmp_path / name).write_text(short[name] * 2 + LONG[name], encoding="utf-8")
    config, unit = DataConfig(source=str(tmp_path / name)), "bytes" if name.endswith("jsonl") else "characters"
    with pytest.raises(DataError, match=rf"{name}, line 3 is longer than 1,000 {unit}; cut it into several lines"):
        prepare(config) if name.startswith("text") else prepare_pairs(config)


def test_an_integer_of_too_many_digits_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ' + "1" * 5000 + "}\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 1: not JSON"):
        prepare(DataConfig(source=str(tmp_path / "a.jsonl")))


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["jsonl", "tsv"])
def test_a_line_of_a_hundred_megabytes_takes_little_memory(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"long.{kind}"
    line = json.dumps({"text": "a" * 10**8}) if kind == "jsonl" else "a\t" + "a" * 10**8
    path.write_text(line, encoding="utf-8")
    script = (
        "import resource, sys\n"
        "from clearhead.config import DataConfig\n"
        "from clearhead.data import prepare, prepare_pairs\n"
        "from clearhead.errors import DataError\n"
        "rss = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before = rss()\n"
        "try: (prepare if sys.argv[1].endswith('l') else prepare_pairs)(DataConfig(source=sys.argv[1]))\n"
        "except DataError as error: print(error, file=sys.stderr)\n"
        "print(rss() - before)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=True, capture_output=True, timeout=300)
    assert int(done.stdout) < 100, f"{int(done.stdout)} MB: {done.stderr.decode()}"
