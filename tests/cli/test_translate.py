"""`clearhead translate` and `evaluate` of a translator, as a person uses them, with wrong input too."""

import io
import random
from pathlib import Path

import pytest
from command_helpers import QUICK, SMALL, Caller

from clearhead import cli

SENTENCES = ["der hund sieht das haus", "ein kind", "die katze mag den baum"]


def pairs(count: int = 80) -> str:
    draw = random.Random(0)
    dictionary = [("hund", "dog"), ("haus", "house"), ("kind", "child"), ("sieht", "sees"), ("mag", "likes")]
    rows = [[draw.choice(dictionary) for _ in range(draw.randint(2, 6))] for _ in range(count)]
    return "".join(" ".join(w for w, _ in row) + "\t" + " ".join(w for _, w in row) + "\n" for row in rows)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a trained translator, which no test changes."""
    folder = tmp_path_factory.mktemp("translator")
    (folder / "my.tsv").write_text(pairs(), encoding="utf-8")
    options = [*SMALL, *QUICK, "--data.bpe_vocab_size", "280", "--model.block_size", "24"]
    assert cli.run(["train", str(folder / "my.tsv"), "--out", str(folder / "run"), *options]) == 0
    return str(folder / "run")


def complaints(err: str) -> list[str]:
    """All that is said but of empty translations, which a model of four steps may well write."""
    return [line for line in err.splitlines() if " empty: the model has learned too little " not in line]


def test_one_sentence_is_one_line(call: Caller, run: str) -> None:
    code, out, err = call("translate", run, SENTENCES[0], "--max-new-tokens", "4")
    assert (code, out.count("\n")) == (0, 1)
    assert bool(out.strip()) != ("clearhead: the translation is empty: " in err), "a line without a word is explained"


def test_lines_stay_lines(call: Caller, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blank line, a carriage return, a byte order mark and no newline at the end are what files have."""
    content = "\ufeff" + "\r\n".join([SENTENCES[0], "", *SENTENCES[1:]])
    Path("in.de").write_bytes(content.encode())
    from_file = call("translate", run, "--input", "in.de", "--out", "out.en")
    assert (from_file.code, from_file.out) == (0, "")
    written = Path("out.en").read_text(encoding="utf-8").split("\n")
    assert len(written) == 5
    assert (written[1], written[4]) == ("", "")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    assert call("translate", run).out.split("\n") == written


def test_as_json(call: Caller, run: str) -> None:
    result = call("translate", run, "ein kind", "--json", "--n-best", "2", "--alignment").json
    (entry,) = result["translations"]
    assert entry["source"] == "ein kind"
    assert len(entry["translations"]) == 2
    assert entry["translations"][0].keys() == {"text", "score", "alignment"}


def test_evaluate_as_json_and_in_words(call: Caller, run: str) -> None:
    Path("a.de").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    Path("a.en").write_text("a dog\nchild\ncat\n", encoding="utf-8")
    score = call("evaluate", run, "--source", "a.de", "--target", "a.en", "--json").json
    assert {"loss", "bleu", "chrf", "signature", "sentences", "exact", "by_length"} == score.keys()
    printed = call("evaluate", run, "--source", "a.de", "--target", "a.en", "--beam-size", "1")
    assert "signature" in printed.out
    assert "up to 5" in printed.out


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["ein kind", "--input", "in.de"], 2, "leave one out"),
        (["--input", "missing.de"], 3, "missing.de"),
        (["--input", "latin.de"], 3, "not UTF-8"),
        (["ein kind", "--beam-size", "0"], 2, "beam_size"),
        (["ein kind", "--n-best", "9"], 2, "more than beam_size (5) holds"),
        (["ein kind", "--out", "no/such/folder.en"], 1, "cannot be written"),
        (["ein kind", "--beem", "3"], 2, "did you mean '--beam-size'"),
    ],
)
def test_mistakes_are_one_sentence(call: Caller, run: str, argv: list[str], code: int, message: str) -> None:
    Path("in.de").write_text("ein kind\n", encoding="utf-8")
    Path("latin.de").write_bytes("schläft\n".encode("latin-1"))
    done = call("translate", run, *argv)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert message in done.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\tc\n" * 30, "3 columns"),
        ("no tab at all\n" * 30, "one column"),
        ("", "0 usable pairs"),
        ("\n\n\n", "0 usable pairs"),
        ("a\t\n" * 30, "0 usable pairs"),
    ],
)
def test_a_file_that_is_no_pairs_is_one_sentence(call: Caller, content: str, message: str) -> None:
    Path("my.tsv").write_text(content, encoding="utf-8")
    done = call("train", "my.tsv")
    assert done.code == 3, done
    assert done.err.count("\n") == 1
    assert message in done.err
    assert not list(Path("runs").glob("*"))


def test_a_sentence_longer_than_the_model_can_read_is_cut_and_said(call: Caller, run: str) -> None:
    done = call("translate", run, "hund " * 10_000, "--max-new-tokens", "4")
    assert done.code == 0
    [complaint] = complaints(done.err)
    assert "block_size of 24" in complaint


def test_an_unseen_alphabet_is_spelled_in_bytes(call: Caller, run: str) -> None:
    """Byte-level pieces have no unknown character."""
    done = call("translate", run, "дом 猫", "--max-new-tokens", "4")
    assert (done.code, complaints(done.err)) == (0, [])
