"""Files of ids: every altered block is noticed before it is read."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import PROSE, entries, file, folder_of
from numpy.typing import NDArray

from clearhead.config import DataConfig
from clearhead.data import evaluation_batches, prepare, token_file
from clearhead.data.token_file import AlteredTokensError, TokenFile, read_rows, write_digests
from clearhead.errors import DataError


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small file has many blocks, of which few are compared when it is opened."""
    monkeypatch.setattr(token_file, "BLOCK", 64)
    monkeypatch.setattr(token_file, "AT_OPENING", 2)


def written(path: Path, n: int, dtype: str = "<u2") -> NDArray[Any]:
    ids = np.arange(n).astype(dtype)
    path.write_bytes(ids.tobytes())
    write_digests(path)
    return ids


def flip(path: Path, byte: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 500])
@pytest.mark.parametrize("dtype", ["<u1", "<u2", "<u4"])
def test_it_reads_as_an_array_does(n: int, dtype: str, tmp_path: Path, small_blocks: None) -> None:
    ids = written(tmp_path / "ids", n, dtype)
    tokens = TokenFile(tmp_path / "ids", dtype)
    assert len(tokens) == n
    assert tokens.dtype == np.dtype(dtype)
    assert np.array_equal(tokens, ids)
    assert np.array_equal(tokens[1:-1], ids[1:-1])
    at = np.minimum(np.array([[0], [n // 2]]) + np.arange(40), n - 1)
    assert np.array_equal(read_rows(tokens, at), ids[at])


def test_every_flipped_bit_is_noticed_by_whoever_reads_it_and_by_nobody_else(
    tmp_path: Path, small_blocks: None
) -> None:
    path = tmp_path / "ids"
    ids, draw = written(path, 1000), random.Random(0)
    for _ in range(200):
        byte = draw.randrange(128, 2000 - 128)  # the first block and the last are compared when it is opened
        flip(path, byte, draw.randrange(8))
        tokens = TokenFile(path, "<u2")
        for start in range(0, 1000, 50):
            at = np.arange(start, start + 50)[None]
            touched = start * 2 // 64 <= byte // 64 <= (start * 2 + 99) // 64
            if touched:
                with pytest.raises(AlteredTokensError, match="was altered after it was written; run the same command"):
                    tokens.rows(at)
                with pytest.raises(AlteredTokensError):
                    tokens[start : start + 50]
            else:
                assert np.array_equal(tokens.rows(at), ids[at])
        path.write_bytes(ids.tobytes())


def test_what_opening_compares_is_noticed_at_once(tmp_path: Path) -> None:
    written(tmp_path / "ids", 1000)
    flip(tmp_path / "ids", 777)
    with pytest.raises(AlteredTokensError):
        TokenFile(tmp_path / "ids", "<u2")


def test_digests_that_are_cut_off_are_no_digests(tmp_path: Path) -> None:
    written(tmp_path / "ids", 100_000)
    blocks = tmp_path / "ids.blocks"
    blocks.write_bytes(blocks.read_bytes()[:-4])
    with pytest.raises(ValueError, match="has 4 blocks and 3 digests"):
        TokenFile(tmp_path / "ids", "<u2")


@pytest.mark.parametrize("name", ["train.bin", "val.bin"])
@pytest.mark.parametrize("harm", ["bit", "ff"])
def test_an_altered_text_in_the_cache_is_made_again(name: str, harm: str, tmp_path: Path, cache: Path) -> None:
    config = DataConfig(source=file(tmp_path))
    good = prepare(config)
    train, val = good.train.tolist(), good.val.tolist()
    path = entries(cache)[0] / name
    if harm == "bit":
        flip(path, path.stat().st_size // 2)
    else:
        path.write_bytes(b"\xff" * path.stat().st_size)
    again = prepare(config)
    assert (again.train.tolist(), again.val.tolist(), again.fingerprint) == (train, val, good.fingerprint)


def test_what_is_met_on_the_way_is_a_sentence_and_made_again_by_the_next_call(
    tmp_path: Path, cache: Path, small_blocks: None
) -> None:
    config = DataConfig(source=file(tmp_path, PROSE * 5))
    good = prepare(config).train.tolist()
    flip(entries(cache)[0] / "train.bin", 700)
    tokens = prepare(config).train  # opening does not see it
    with pytest.raises(DataError, match=r"train\.bin was altered"):
        list(evaluation_batches(tokens, block_size=8, batch_size=4))
    assert prepare(config).train.tolist() == good


def test_other_ids_are_another_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of the tokenizers' library that cuts a text otherwise would train on something else in silence."""
    source = folder_of(tmp_path / "texts", *[PROSE[i:] for i in range(7)])
    config = DataConfig(source=source, tokenizer="bpe")
    before = prepare(config, cache=tmp_path / "one")
    monkeypatch.setattr("clearhead.data.encoded._PIECE", 61)
    monkeypatch.setattr("clearhead.data.encoded._BATCH", 100)
    after = prepare(config, cache=tmp_path / "two")
    assert not np.array_equal(before.train, after.train)
    assert before.tokenizer.fingerprint == after.tokenizer.fingerprint
    assert before.fingerprint != after.fingerprint
