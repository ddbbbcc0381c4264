"""`clearhead fill` as a person uses it, with wrong input too."""

import io

import pytest
from command_helpers import QUICK, SMALL, TINY, Caller, text, write_text

from clearhead import cli

MASKED = ["--objective", "masked", "--model.architecture", "encoder", "--data.bpe_vocab_size", "300"]
QUESTION = "the [MASK] goes\n[MASK]"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a trained encoder, which no test changes."""
    folder = tmp_path_factory.mktemp("encoder")
    (folder / "my.txt").write_text(text(2000), encoding="utf-8")
    options = [*SMALL, *QUICK, *MASKED, "--model.block_size", "16"]
    assert cli.run(["train", str(folder / "my.txt"), "--out", str(folder / "run"), *options]) == 0
    return str(folder / "run")


def test_the_text_comes_first_and_then_what_was_likely(call: Caller, run: str) -> None:
    code, out, err = call("fill", run, QUESTION, "--top-k", "3")
    result = call("fill", run, QUESTION, "--top-k", "3", "--json").json
    assert (code, err) == (0, "")
    assert result.keys() == {"text", "filled", "masks"}
    assert result["text"] == QUESTION
    assert [len(candidates) for candidates in result["masks"]] == [3, 3]
    first, second = (candidates[0]["token"] for candidates in result["masks"])
    assert result["filled"] == f"the{first} goes\n{second}"
    assert out.startswith(result["filled"] + "\n--- 1 ---\n")
    assert out.count("%") == 6
    for candidates in result["masks"]:
        assert all(
            candidate.keys() == {"token", "probability"} and 0 < candidate["probability"] < 1
            for candidate in candidates
        )


def test_standard_input_is_a_text_without_the_end_of_its_line(
    call: Caller, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = call("fill", run, QUESTION, "--json").json
    for end in (b"", b"\n", b"\r\n"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(QUESTION.encode() + end)))
        assert call("fill", run, "-", "--json").json == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff[MASK]")))
    refused = call("fill", run, "-")
    assert refused.code == 3
    assert "the text on standard input is not UTF-8 at byte 0" in refused.err


def test_a_long_text_is_read_in_part_and_that_is_said(call: Caller, run: str) -> None:
    code, out, err = call("fill", run, "the king " * 40 + "[MASK]")
    assert code == 0
    assert out.startswith("the king " * 39 + "the king")
    assert "more than the model's block_size" in err


def test_a_text_without_a_mask_is_a_sentence(call: Caller, run: str) -> None:
    for argv in ([run], [run, "the king"], [run, ""]):
        refused = call("fill", *argv)
        assert refused.code == 2
        assert "nothing to fill in; write [MASK] where a word is missing" in refused.err
    for argv, code in (([run, "[MASK]", "--top-k", "0"], 2), (["nowhere", "[MASK]"], 3)):
        refused = call("fill", *argv)
        assert refused.code == code
        assert refused.err.count("\n") == 1


def test_the_newest_run_is_meant_and_must_be_able_to(call: Caller) -> None:
    write_text(2000)
    assert call("train", "my.txt", *SMALL, *QUICK, *MASKED).code == 0
    assert call("fill", "the [MASK]").code == 0
    assert call("train", "my.txt", *TINY, "--out", "runs/writer").code == 0
    refused = call("fill", "the [MASK]")
    assert refused.code == 2
    assert "fill needs a run trained with --objective masked; for runs/writer use generate" in refused.err
