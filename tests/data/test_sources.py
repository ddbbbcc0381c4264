import errno
import io
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data import documents
from clearhead.data.documents import Document, read_text
from clearhead.data.sources import open_source
from clearhead.errors import DataError

TEXT = "Der Käse, 猫 and 🦜.\r\nA line\rwith\u2028odd\x0bends\n"


def read(source: str | Path, cache: Path) -> list[str]:
    return ["".join(document.pieces) for document in open_source(str(source), cache).documents()]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.integers(1, 9))
def test_a_file_is_read_as_it_is_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    body = ("some harmless words first, so that odd characters do not make it binary " * 3 + text).encode()
    path.write_bytes(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "READ_SIZE", size)  # characters of several bytes are cut in two
        assert "".join(read_text(path)).encode() == body


def test_a_byte_order_mark_is_dropped_and_only_that(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode() + b"\xef\xbb\xbf")
    assert "".join(read_text(path)) == TEXT + "\ufeff"


def test_a_folder_is_its_text_files_in_one_order(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "texts"
    for name, text in {
        "b.txt": "bee", "a/z.md": "zed", "a/empty.txt": " \n", "c.PY": "no", "d.TXT": "dee", ".git/x.txt": "no",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    assert read(folder, cache) == ["zed", "bee", "dee"]


def test_the_runs_in_a_folder_are_no_text_of_it(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "texts"
    for name in ("a.txt", "runs/notes.md", "runs/one/samples.md", "runs/one/deep/er/b.txt", "z/c.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name, encoding="utf-8")
    (folder / "runs" / "one" / "clearhead.toml").touch()
    (folder / "clearhead.toml").touch()  # the settings of what is trained here, or a run that was asked for by name
    assert read(folder, cache) == ["a.txt", "runs/notes.md", "z/c.txt"]


def test_json_lines_are_documents(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": TEXT, "id": 1}), "", json.dumps({"text": " \n"}), json.dumps({"text": "two\u2028"})]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    assert read(path, cache) == [TEXT, "two\u2028"]


def test_standard_input_can_be_read_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    source = open_source("-", cache)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"something else")))
    for again in (source, source, open_source(source.name, cache)):
        assert ["".join(document.pieces) for document in again.documents()] == [TEXT]
    assert [path.name for path in (cache / "streams").iterdir()] == [Path(source.name).name]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_can_be_read_again(tmp_path: Path, cache: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[TEXT.encode()])
    writer.start()
    source = open_source(str(pipe), cache)
    writer.join(timeout=100)
    for _ in range(2):
        assert ["".join(document.pieces) for document in source.documents()] == [TEXT]


def test_the_identity_is_that_of_the_content(tmp_path: Path, cache: Path) -> None:
    def identity(*names: str) -> str:
        folder = tmp_path / "-".join(names)
        folder.mkdir(exist_ok=True)
        for i, text in enumerate(names):
            (folder / f"{i}.txt").write_text(text, encoding="utf-8")
        return open_source(str(folder), cache).identity()

    assert identity("ab", "c") != identity("a", "bc")  # a boundary counts
    jsonl = tmp_path / "one.jsonl"
    jsonl.write_text('{"text": "ab"}', encoding="utf-8")
    plain = tmp_path / "two.txt"
    plain.write_text('{"text": "ab"}', encoding="utf-8")
    assert open_source(str(jsonl), cache).identity() != open_source(str(plain), cache).identity()
    before = open_source(str(plain), cache).identity()
    moved = plain.rename(tmp_path / "three.md")
    os.utime(moved, (0, 0))
    assert open_source(str(moved), cache).identity() == before


BAD_FILES = {
    "utf16": ("é text".encode("utf-16"), "a.txt is UTF-16; save it as UTF-8"),
    "picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)), "a.txt is a binary file, not text"),
    "controls": (bytes(range(1, 32)) * 10, "a.txt is a binary file, not text"),
    "latin1": ("a line\nété".encode("latin-1"), "a.txt is not UTF-8: byte 0xe9 at offset 7 "),
    "far": (b"x" * 3_000_000 + b"\xff", "a.txt is not UTF-8: byte 0xff at offset 3,000,000 "),
    "cut": (b"abc" + "猫".encode()[:2], "a.txt is not UTF-8: byte 0xe7 at offset 3 (unexpected end of data)"),
    "across": (b"x" * 1_048_575 + b"\xe7\x8cx", "a.txt is not UTF-8: byte 0xe7 at offset 1,048,575 "),
    "surrogate": (b"abc\xed\xa0\x80", "a.txt is not UTF-8: byte 0xed at offset 3 "),
    "nul": (b"plain text" * 50 + b"\0" + b"plain text" * 50, "a.txt holds a NUL character at byte 500; remove it"),
    "far nul": (b"x" * 3_000_000 + b"\0", "a.txt holds a NUL character at byte 3,000,000"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_gets_its_sentence(kind: str, tmp_path: Path, cache: Path) -> None:
    content, sentence = BAD_FILES[kind]
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError) as error:
        read(tmp_path / "a.txt", cache)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


BAD_LINES = {
    "not JSON": b'{"text": "a"',
    "no 'text'": b'{"txt": "a"}',
    "'text' that is a string": b'{"text": 3}',
    "every line is an object": b'["text"]',
    "lone surrogate U+D800 at offset 2": rb'{"text": "ab\ud800"}',
    "a NUL character at offset 2": rb'{"text": "ab\u0000"}',
    "not UTF-8 at byte 10": b'{"text": "\xe9"}',
    "not JSON (it is nested too deeply": b"[" * 100_000,
}


@pytest.mark.parametrize("sentence", BAD_LINES)
def test_a_bad_line_gets_its_sentence_and_number(sentence: str, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n\n' + BAD_LINES[sentence] + b"\n")
    with pytest.raises(DataError) as error:
        read(path, cache)
    assert str(error.value).startswith(f"{path}, line 3: ")
    assert sentence in str(error.value)


def test_a_folder_without_text_says_what_it_looked_for(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "a.py").write_text("x = 1", encoding="utf-8")
    with pytest.raises(DataError, match=r"code holds no \.txt, \.md, \.jsonl or \.parquet file \(of 1 file\)"):
        read(folder, cache)


@pytest.mark.parametrize(
    ("source", "hint"),
    [("storeis", "did you mean 'stories'?"), ("a/mine.txt", "did you mean 'a/mime.txt'?"), ("qqq", "stories, shakes")],
)
def test_a_missing_file_gets_a_guess(
    source: str, hint: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mime.txt").touch()
    with pytest.raises(DataError) as error:
        open_source(source, cache)
    assert str(error.value).startswith(f"there is no file, folder or corpus '{source}'; ")
    assert hint in str(error.value).replace(os.sep, "/")


def test_a_file_that_may_not_be_read_is_a_sentence(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(TEXT, encoding="utf-8")
    source = open_source(str(path), cache)

    def refuse(*args: object, **kwargs: object) -> None:  # a superuser may read everything, so mode bits prove nothing
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    for reading in (source.identity, lambda: [Document("", iter(d.pieces)) for d in source.documents()]):
        with pytest.raises(DataError, match=r"a\.txt cannot be read: Permission denied"):
            reading()
