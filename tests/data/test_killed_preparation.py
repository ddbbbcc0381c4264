"""A preparation that was killed goes on where it was, and ends with the same bytes."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from data_helpers import PROSE, entries, file, folder_of
from numpy.typing import NDArray

from clearhead.cache import continued_folder, keep
from clearhead.config import DataConfig
from clearhead.data import Tokenizer, encoded, preparation_log, prepare
from clearhead.errors import DataError


class Killed(BaseException):
    """As kill -9: nothing that cleans up after an error sees it."""


def content(cache: Path) -> dict[str, bytes]:
    (entry,) = entries(cache)
    return {path.name: path.read_bytes() for path in sorted(entry.iterdir())}


TEXTS = [PROSE[i : i + 100 + 61 * i] for i in range(12)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
@pytest.mark.parametrize("kind", ["folder", "jsonl", "one long text"])
def test_it_goes_on_and_ends_with_the_same_bytes(
    kind: str, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {
        "folder": lambda: folder_of(tmp_path / "texts", *TEXTS),
        "jsonl": lambda: file(tmp_path, "".join(json.dumps({"text": text}) + "\n" for text in TEXTS), "a.jsonl"),
        "one long text": lambda: file(tmp_path, "".join(TEXTS)),
    }[kind]()
    config = DataConfig(source=source, tokenizer=tokenizer)
    monkeypatch.setattr(encoded, "_BATCH", 300)
    monkeypatch.setattr(encoded, "_PIECE", 61)
    monkeypatch.setattr(preparation_log, "EVERY", 0.0)
    prepare(config, cache=tmp_path / "whole")
    whole = content(tmp_path / "whole")
    draw, killed, characters = random.Random(1), 0, list[int]()
    encode_batch = Tokenizer.encode_batch

    def counted(self: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.integer]]:
        characters.append(sum(map(len, texts)))
        return encode_batch(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", counted)

    def kill(share: float) -> None:
        if share < 1 and draw.random() < 0.3:
            raise Killed

    for _ in range(200):
        try:
            prepare(config, cache=tmp_path / "killed", on_progress=kill)
        except Killed:
            killed += 1
            for name in ("train.bin", "val.bin"):  # a process that is killed leaves more than it has noted
                for path in (tmp_path / "killed" / "texts").glob(f".unfinished-*/{name}"):
                    with path.open("ab") as rest:
                        rest.write(b"rest")
        else:
            break
    assert killed > 2
    assert content(tmp_path / "killed") == whole
    if kind != "one long text":  # which has no end of a document to go on from
        assert sum(characters) < killed * sum(map(len, TEXTS)) / 2, "most of it is not encoded again"


@pytest.mark.parametrize("name", ["progress.json", "survey.npz", "tokenizer.json", "train.bin"])
def test_what_is_damaged_is_made_anew(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "_BATCH", 300)
    monkeypatch.setattr(preparation_log, "EVERY", 0.0)
    config = DataConfig(source=folder_of(tmp_path / "texts", *TEXTS))
    prepare(config, cache=tmp_path / "whole")

    def kill(share: float) -> None:
        if share > 0.7:
            raise Killed

    with pytest.raises(Killed):
        prepare(config, cache=tmp_path / "killed", on_progress=kill)
    ((folder),) = (tmp_path / "killed" / "texts").glob(".unfinished-*[!k]")
    path = folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    prepare(config, cache=tmp_path / "killed")
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_two_that_make_the_same_do_not_disturb_each_other(tmp_path: Path) -> None:
    entry = tmp_path / "entry"
    with continued_folder(entry) as first:
        (first / "a").write_text("1", encoding="utf-8")
        with continued_folder(entry) as second:
            assert second != first
            (second / "a").write_text("1", encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def make(folder: Path) -> dict[str, object]:
        (folder / "a").touch()
        raise DataError("no text")

    with pytest.raises(DataError, match="no text"):
        keep(tmp_path / "entry", make, continued=True)
    assert list(tmp_path.iterdir()) == []
