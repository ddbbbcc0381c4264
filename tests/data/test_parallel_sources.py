import json
from pathlib import Path

import pytest
from data_helpers import file
from hypothesis import given
from hypothesis import strategies as st
from parallel_helpers import json_lines, made_pairs, table, two_files

from clearhead.config import DataConfig
from clearhead.data import documents, is_pairs, prepare, read_lines, read_pairs
from clearhead.data.parallel.sources import open_pairs
from clearhead.errors import DataError

TEXTS = made_pairs(30)
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0\n")


@given(lines=st.lists(st.text(CHARACTERS, max_size=9)), end=st.sampled_from(["\n", "\r\n"]), size=st.integers(1, 9))
def test_lines_end_at_newlines_alone_however_the_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, size: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    lines = ["harmless words before odd characters, so that it is no binary file " * 3, *lines, "the last"]
    expected = [line.removesuffix("\r") if end == "\n" else line for line in lines]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "READ_SIZE", size)  # characters and line ends are cut in two
        for last in (end, ""):
            path.write_bytes((end.join(lines) + last).encode())
            assert list(read_lines(path)) == expected


def test_every_way_to_give_pairs_gives_the_same(tmp_path: Path) -> None:
    source, target = two_files(tmp_path, TEXTS)
    assert read_pairs(source, target) == TEXTS
    assert read_pairs(table(tmp_path, TEXTS)) == TEXTS
    assert read_pairs(table(tmp_path, TEXTS, "my.TAB")) == TEXTS
    assert read_pairs(json_lines(tmp_path, TEXTS)) == TEXTS
    assert read_pairs(source, target, reverse=True) == [(b, a) for a, b in TEXTS] == read_pairs(target, source)


def test_marks_line_ends_and_outer_spaces_are_no_part_of_a_sentence(tmp_path: Path) -> None:
    bom = b"\xef\xbb\xbf"
    expected = [("eins\u2028zwei", "one \x85 two"), ("drei", "three\x0bfour"), ("", "six"), ("sieben", "")]
    german, english = tmp_path / "a.de", tmp_path / "a.en"
    german.write_bytes(bom + " eins\u2028zwei\r\ndrei \t\r\n\r\nsieben\r\n".encode())
    english.write_bytes("one \x85 two\nthree\x0bfour\n six\n \n".encode())
    assert read_pairs(str(german), str(english)) == expected
    english.write_bytes("one \x85 two\nthree\x0bfour\n six\n ".encode())  # a last line without an end
    assert read_pairs(str(german), str(english)) == expected
    columns = tmp_path / "a.tsv"
    columns.write_bytes(bom + "\r\n".join(f" {a}\t{b} " for a, b in expected).encode())
    assert read_pairs(str(columns)) == expected
    objects = tmp_path / "a.jsonl"
    lines = [json.dumps({"source": f"\n{a} ", "target": f"{b}\t", "id": 1}) for a, b in expected]
    objects.write_bytes(bom + "\r\n\r\n".join(lines).encode())
    assert read_pairs(str(objects)) == expected


def test_a_blank_line_of_a_table_is_a_pair_of_empty_sentences(tmp_path: Path) -> None:
    assert read_pairs(file(tmp_path, "a\tb\n\n \r\nc\td\n", "my.tsv")) == [("a", "b"), ("", ""), ("", ""), ("c", "d")]


@pytest.mark.parametrize(("n_source", "n_target"), [(30, 29), (3, 30), (0, 1), (1_001, 1)])
def test_unequal_numbers_of_lines_are_refused_with_both(tmp_path: Path, n_source: int, n_target: int) -> None:
    source, target = file(tmp_path, "a\n" * n_source, "a.de"), file(tmp_path, "b\n" * n_target, "a.en")
    sentence = rf"a\.de has {n_source:,} lines and .*a\.en has {n_target:,}; .* line by line"
    with pytest.raises(DataError, match=sentence):
        read_pairs(source, target)
    with pytest.raises(DataError, match=sentence):
        list(open_pairs(source, target, tmp_path, reverse=True).train.pairs())


@pytest.mark.parametrize(
    ("line", "columns"), [("only one", "one column"), ("a\tb\tc", "3 columns"), ("a\tb\t", "3 col")]
)
def test_a_table_needs_two_columns(tmp_path: Path, line: str, columns: str) -> None:
    path = file(tmp_path, f"a\tb\n\nc\td\n{line}\n", "my.tsv")
    with pytest.raises(DataError, match=rf"my\.tsv, line 4: {columns}.*; two columns are needed: source, tab, target"):
        read_pairs(path)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"source": "a"}', "line 2: no 'target' that is a string; every line is an object like"),
        ('{"source": 1, "target": "b"}', "line 2: no 'source' that is a string"),
        ('["a", "b"]', "line 2: no 'source' that is a string"),
        ("{source}", "line 2: not JSON .* every line is an object with a 'source' and a 'target'"),
        (r'{"source": "a", "target": "\ud800"}', r"line 2: a lone surrogate U\+D800"),
        (r'{"source": "a\u0000", "target": "b"}', "line 2: a NUL character at offset 1"),
    ],
)
def test_an_object_needs_a_source_and_a_target(tmp_path: Path, line: str, sentence: str) -> None:
    path = file(tmp_path, '{"source": "a", "target": "b"}\n' + line, "my.jsonl")
    with pytest.raises(DataError, match=rf"my\.jsonl, {sentence}"):
        read_pairs(path)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("é\té".encode("utf-16"), "is UTF-16; save it as UTF-8"),
        ("a\tb\nété\tb".encode("latin-1"), "is not UTF-8: byte 0xe9 at offset 4"),
        (b"plain\ttext" * 50 + b"\0", "holds a NUL character at byte 500"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)), "is a binary file, not text"),
    ],
)
def test_what_is_no_text_is_told_as_of_texts(tmp_path: Path, body: bytes, sentence: str) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_bytes(body)
    with pytest.raises(DataError, match=f"bad.tsv {sentence}"):
        read_pairs(str(bad))
    good = file(tmp_path, "a\nb\n", "good.en")
    bad = bad.rename(tmp_path / "bad.de")
    for both in ((str(bad), good), (good, str(bad))):
        with pytest.raises(DataError, match=f"bad.de {sentence}"):
            read_pairs(*both)


def test_what_cannot_be_pairs_is_a_sentence(tmp_path: Path) -> None:
    german, english = two_files(tmp_path, TEXTS)
    columns = table(tmp_path, TEXTS)
    cases: list[tuple[str, str | None, str]] = [
        ("-", None, "cannot come from standard input"),
        (german, "-", "cannot come from standard input"),
        (german, None, r"my\.de is one side of sentence pairs; give two files, the other one as data\.target"),
        (str(tmp_path), None, "is not a file; give two files"),
        (german, str(tmp_path), "is not a file; give two files"),
        (german, str(tmp_path / "my.em"), r"there is no file .*my\.em'; did you mean '.*my\.en'\?"),
        (str(tmp_path / "my.tsw"), None, r"did you mean '.*my\.tsv'\?"),
        ("multi3k", None, r"did you mean 'multi30k'\?"),
        ("qqqq", None, "the corpora of sentence pairs are pairs, multi30k"),
        ("stories", None, "the corpus stories is a text without translations; the corpora of sentence pairs are"),
        ("pairs", english, "the corpus pairs holds both sides; leave out the target"),
        ("pairs:sene", None, "the corpus pairs has no split 'sene'; its splits are train, seen, unseen"),
        (columns, english, r"my\.tsv should already hold both sides; leave out the target"),
        (json_lines(tmp_path, TEXTS), english, r"my\.jsonl should already hold both sides"),
        (file(tmp_path, "", "empty.tsv"), None, r"empty\.tsv is empty; there is nothing to evaluate on"),
        (file(tmp_path, "", "a"), file(tmp_path, "", "b"), "a is empty; there is nothing to evaluate on"),
    ]
    for source, target, sentence in cases:
        with pytest.raises(DataError, match=sentence):
            read_pairs(source, target)


def test_a_text_that_is_wanted_is_not_a_corpus_of_pairs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the corpus multi30k is sentence pairs, not a text; .* stories, shakespeare"):
        prepare(DataConfig(source="multi30k"))
    with pytest.raises(DataError, match=r"did you mean 'multi30k'\?"):
        prepare(DataConfig(source="multi3k"))


def test_pairs_are_told_from_texts(tmp_path: Path) -> None:
    german, english = two_files(tmp_path, TEXTS)
    pairs = [
        DataConfig(source=german, target=english),
        DataConfig(source="missing", target="missing"),
        DataConfig(source="pairs"),
        DataConfig(source="multi30k:val"),
        DataConfig(source=table(tmp_path, TEXTS)),
        DataConfig(source="missing.TAB"),
        DataConfig(source=json_lines(tmp_path, TEXTS)),
        DataConfig(source=file(tmp_path, '\n\n{"source": "", "target": ""}\n{', "late.jsonl")),
    ]
    texts = [
        DataConfig(source=german),
        DataConfig(source="stories"),
        DataConfig(source="-"),
        DataConfig(source=str(tmp_path)),
        DataConfig(source="missing.jsonl"),
        DataConfig(source=file(tmp_path, '{"text": "a"}\n{"source": "a", "target": "b"}', "text.jsonl")),
        DataConfig(source=file(tmp_path, '{"source": "web", "text": "a"}', "from.jsonl")),
        DataConfig(source=file(tmp_path, "", "empty.jsonl")),
        DataConfig(source=file(tmp_path, "{", "broken.jsonl")),
    ]
    assert [is_pairs(config) for config in pairs] == [True] * len(pairs)
    assert [is_pairs(config) for config in texts] == [False] * len(texts)


def test_the_identity_is_that_of_the_content_and_the_direction(tmp_path: Path) -> None:
    def identity(folder: str, texts: list[tuple[str, str]], reverse: bool = False) -> str:
        return open_pairs(*two_files(tmp_path / folder, texts), tmp_path, reverse=reverse).train.identity()

    assert identity("a", TEXTS) == identity("b", TEXTS)
    others = [identity("c", TEXTS[:-1]), identity("d", TEXTS, reverse=True), identity("e", [("a", "b")])]
    assert len({identity("a", TEXTS), *others}) == 4
