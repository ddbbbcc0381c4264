"""Compressed files, parquet, patterns and folders of them: the same tokens whatever the packing, and hostile ones."""

import gzip
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from data_helpers import PROSE, file

from clearhead.config import DataConfig
from clearhead.data import compression, documents, is_pairs, parquet, prepare, prepare_pairs, short_name, text_bytes
from clearhead.data.sources import open_source
from clearhead.errors import DataError

zstd = pytest.importorskip("backports.zstd", reason="needs the extra: pip install 'clearhead[zstd]'")
pyarrow = pytest.importorskip("pyarrow", reason="needs the extra: pip install 'clearhead[parquet]'")
from pyarrow import parquet as writer  # noqa: E402

TEXTS = [PROSE[i : i + 150 + 7 * i] for i in range(12)]


def as_json(texts: list[str], key: str = "text") -> bytes:
    return "".join(json.dumps({"id": 1, key: text}) + "\n" for text in texts).encode()


def as_parquet(path: Path, texts: Sequence[str | None], column: str = "text", **options: object) -> Path:
    writer.write_table(pyarrow.table({"id": list(range(len(texts))), column: texts}), path, **options)
    return path


def write(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


PACKINGS: dict[str, Callable[[Path], str]] = {
    "jsonl": lambda f: str(write(f, {"a.jsonl": as_json(TEXTS)}) / "a.jsonl"),
    "jsonl.gz": lambda f: str(write(f, {"a.jsonl.gz": gzip.compress(as_json(TEXTS))}) / "a.jsonl.gz"),
    "two members": lambda f: str(
        write(f, {"a.jsonl.gz": gzip.compress(as_json(TEXTS[:5])) + gzip.compress(as_json(TEXTS[5:]))}) / "a.jsonl.gz"
    ),
    "jsonl.zst": lambda f: str(write(f, {"A.JSONL.ZST": zstd.compress(as_json(TEXTS))}) / "A.JSONL.ZST"),
    "two frames": lambda f: str(
        write(f, {"a.jsonl.zst": zstd.compress(as_json(TEXTS[:5])) + zstd.compress(as_json(TEXTS[5:]))}) / "a.jsonl.zst"
    ),
    "several": lambda f: str(
        write(
            f / "x",
            {
                "1.jsonl.gz": gzip.compress(as_json(TEXTS[:3])),
                "2.jsonl": as_json(TEXTS[3:7]),
                "3.jsonl.zst": zstd.compress(as_json(TEXTS[7:])),
                "README.md": b"Not a part of the text.",
            },
        )
    ),
    "pattern": lambda f: str(
        write(
            f, {f"{i:02}.txt{('', '.gz')[i % 2]}": (bytes, gzip.compress)[i % 2](TEXTS[i].encode()) for i in range(12)}
        )
        / "*.txt*"
    ),
    "deep pattern": lambda f: str(
        write(f / "a/b", {"2.jsonl.gz": gzip.compress(as_json(TEXTS[6:]))}).parents[1] / "**" / "*.jsonl.gz"
        if write(f / "a", {"1.jsonl.gz": gzip.compress(as_json(TEXTS[:6]))})
        else ""
    ),
    "parquet": lambda f: str(
        as_parquet(write(f, {}) / "a.parquet", [*TEXTS[:4], None, " ", *TEXTS[4:]], row_group_size=3)
    ),
    "parquets": lambda f: str(
        as_parquet(as_parquet(write(f, {}) / "1.parquet", TEXTS[:6]).parent / "2.parquet", TEXTS[6:]).parent
    ),
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_packing_changes_no_token(packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = prepare(DataConfig(source=file(tmp_path, as_json(TEXTS).decode(), "plain.jsonl"), tokenizer="bpe"))
    monkeypatch.setattr(parquet, "_ROWS", 2)
    source = PACKINGS[packing](tmp_path / "packed")
    packed = prepare(DataConfig(source=source, tokenizer="bpe"))
    assert packed.n_documents == len(TEXTS)
    assert packed.tokenizer.fingerprint == plain.tokenizer.fingerprint
    assert np.array_equal(packed.train, plain.train)
    assert np.array_equal(packed.val, plain.val)
    assert packed.source == source
    monkeypatch.chdir(tmp_path)
    again = prepare(DataConfig(source=os.path.relpath(source), tokenizer="bpe"))
    assert (again.fingerprint, again.source) == (packed.fingerprint, source)


def test_a_column_is_named(tmp_path: Path) -> None:
    lines = file(tmp_path, as_json(TEXTS, "body").decode(), "a.jsonl")
    rows = str(as_parquet(tmp_path / "a.parquet", list(TEXTS), "body"))
    from_lines, from_rows = (prepare(DataConfig(source=source, text_column="body")) for source in (lines, rows))
    assert np.array_equal(from_lines.train, from_rows.train)
    sentence = r"no column 'text' of strings; it has id \(int64\), body \(string\): name one with `data\.text_column`"
    with pytest.raises(DataError, match=sentence):
        prepare(DataConfig(source=rows))
    with pytest.raises(DataError, match="no column 'id' of strings"):
        prepare(DataConfig(source=rows, text_column="id"))


def test_what_a_folder_holds(tmp_path: Path, cache: Path) -> None:
    def names(*files: str) -> list[str]:
        folder = write(tmp_path / "-".join(files), {name: as_json(["x"]) for name in files})
        return [Path(document.name.partition(",")[0]).name for document in open_source(str(folder), cache).documents()]

    assert names("a.md", "b.jsonl", "c.txt") == ["a.md", "c.txt"]
    assert names("a.md", "b.jsonl", "c.csv") == ["b.jsonl"]
    assert names("a.md", "c.csv") == ["a.md"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path, cache: Path) -> None:
    path = Path(file(tmp_path, "mine", "a[1].txt"))
    file(tmp_path, "other", "a1.txt")
    assert ["".join(document.pieces) for document in open_source(str(path), cache).documents()] == ["mine"]
    with pytest.raises(DataError, match=r"no file fits the pattern '.*b\*\.txt'"):
        open_source(str(tmp_path / "b*.txt"), cache)


def test_pairs_may_be_compressed(tmp_path: Path) -> None:
    table = "".join(f"the cat {i}\tdie Katze {i}\n" for i in range(40))
    plain = DataConfig(source=file(tmp_path, table, "a.tsv"))
    packed = DataConfig(source=str(write(tmp_path, {"a.tsv.gz": gzip.compress(table.encode())}) / "a.tsv.gz"))
    assert is_pairs(packed)
    assert prepare_pairs(plain).val_texts == prepare_pairs(packed).val_texts
    objects = gzip.compress(b'{"source": "a", "target": "b"}\n')
    assert is_pairs(DataConfig(source=str(write(tmp_path, {"p.jsonl.gz": objects}) / "p.jsonl.gz")))


def test_a_run_is_called_after_its_text(tmp_path: Path) -> None:
    names = {"a.jsonl.gz": "a", "b.txt": "b", "c.v2.txt.zst": "c.v2"}
    assert {name: short_name(str(tmp_path / name)) for name in names} == names
    assert short_name(str(tmp_path / "texts" / "*.txt.gz")) == "texts"
    assert text_bytes(str(write(tmp_path, {"a.txt": b"x" * 10, "b.txt.gz": b"x" * 10}))) == 10 + 3 * 10


PACKED = gzip.compress(os.urandom(4000).hex().encode())
BAD = {
    "a.txt.gz": (PROSE.encode(), "a.txt.gz is not compressed with gzip, as its name says; .* call it a.txt$"),
    "b.txt.zst": (PACKED, "b.txt.zst is not compressed with zstd, as its name says"),
    "c.txt": (PACKED, r"c\.txt is compressed; call it c\.txt\.gz, so that it is unpacked"),
    "d.txt": (zstd.compress(PROSE.encode()), r"d\.txt is compressed; call it d\.txt\.zst"),
    "e.txt.gz": (PACKED[:-2000], r"e\.txt\.gz is damaged or was cut off \(Compressed file ended before"),
    "f.txt.gz": (PACKED[:-20] + bytes(12) + PACKED[-8:], r"f\.txt\.gz is damaged or was cut off \("),
    "g.jsonl.zst": (zstd.compress(as_json(TEXTS))[:-40], r"g\.jsonl\.zst is damaged or was cut off \(Compressed file"),
    "h.jsonl.gz": (PACKED, r"h\.jsonl\.gz, line 1: not JSON"),
    "i.txt.gz": (gzip.compress(bytes(5000)), r"i\.txt\.gz is a binary file"),
    "j.txt.gz": (gzip.compress(b"\n"), r"j\.txt\.gz is empty"),
    "k.txt.gz": (b"", r"k\.txt\.gz is empty"),
    "l.txt.zst": (b"", r"l\.txt\.zst is (empty|damaged)"),
    "m.parquet": (PROSE.encode(), r"m\.parquet is no whole parquet file \(Parquet magic bytes not found"),
    "n.parquet": (b"", r"n\.parquet is no whole parquet file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gets_its_sentence(name: str, tmp_path: Path) -> None:
    content, sentence = BAD[name]
    with pytest.raises(DataError, match=sentence) as error:
        prepare(DataConfig(source=str(write(tmp_path, {name: content}) / name)))
    assert "\n" not in str(error.value)


def test_damaged_parquet_is_a_sentence(tmp_path: Path) -> None:
    """Wherever the damage is: never a crash, and no traceback."""
    whole = as_parquet(tmp_path / "a.parquet", list(TEXTS)).read_bytes()
    random = np.random.default_rng(1)
    refused = 0
    for attempt in range(60):
        content = bytearray(whole[: random.integers(8, len(whole))] if attempt % 2 else whole)
        for offset in random.integers(0, len(content), 8):
            content[offset] = random.integers(256)
        (tmp_path / "b.parquet").write_bytes(content)
        try:
            list(documents.files_source("", [tmp_path / "b.parquet"]).documents())
        except DataError:
            refused += 1
    assert refused >= 30


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_what_unpacks_to_far_more_than_a_text_is_refused(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "FREE_EXPANSION", 1_000_000)
    pack = gzip.compress if suffix == ".gz" else zstd.compress
    bomb = write(tmp_path, {f"a.txt{suffix}": pack(b"so it goes. " * 1_000_000)}) / f"a.txt{suffix}"
    with pytest.raises(DataError, match="unpacks to more than 200 times its size, which no text does; if that is m"):
        prepare(DataConfig(source=str(bomb)))


def test_a_string_that_many_rows_share_is_no_bomb_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FREE_EXPANSION", 100_000)
    path = as_parquet(tmp_path / "a.parquet", ["so it goes. " * 500] * 5000)
    assert path.stat().st_size < 50_000
    with pytest.raises(DataError, match="unpacks to more than 200 times its size"):
        prepare(DataConfig(source=str(path)))


def test_a_row_group_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    texts = [os.urandom(2000).hex() for _ in range(10_000)]  # 40 MB that no dictionary helps
    path = as_parquet(tmp_path / "a.parquet", texts, row_group_size=10**6)
    pool = pyarrow.proxy_memory_pool(pyarrow.default_memory_pool())  # counts from here on
    pyarrow.set_memory_pool(pool)
    try:
        source = documents.files_source("", [path])
        assert sum(len(text) for document in source.documents() for text in document.pieces) == 40_000_000
    finally:
        pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    assert pool.max_memory() < 15_000_000


def test_zstd_may_not_ask_for_gigabytes(tmp_path: Path) -> None:
    parameter = zstd.CompressionParameter
    options = {parameter.window_log: 30, parameter.enable_long_distance_matching: 1}
    packer = zstd.ZstdCompressor(options=options)
    content = packer.compress(PROSE.encode()) + packer.flush()  # of no known size, so the frame names its window
    with pytest.raises(DataError, match=r"a\.txt\.zst is damaged or was cut off \(.*requires too much memory"):
        prepare(DataConfig(source=str(write(tmp_path, {"a.txt.zst": content}) / "a.txt.zst")))
