"""Tokenizers from elsewhere: healthy ones of every kind are accepted, and no hostile one gets past one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hostile_tokenizers import NAMED, as_text, replace
from strangers_tokenizers import KINDS, TEXT, state_of
from tokenizers import models, pre_tokenizers

from clearhead.data import Tokenizer, UnseenCharacterError
from clearhead.data.tokenizers import guard, sandbox, sandboxed
from clearhead.errors import DataError

HARMLESS = "a charsmap whose text lies outside"  # the library minds


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is believed yet."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CLEARHEAD_CACHE", str(cache))
    return cache


def write(folder: Path, text: str) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_tokenizer_of_each_kind_is_accepted(kind: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, as_text(state_of(kind))), keep_frame=True)
    library = tokenizers.Tokenizer.from_str(as_text(state_of(kind)))
    library.encode_special_tokens = True
    assert tokenizer.encode(TEXT).tolist() == library.encode(TEXT, add_special_tokens=False).ids
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
    framed = library.encode("the cat").ids
    assert [*tokenizer.beginning, *tokenizer.encode("the cat").tolist(), *tokenizer.ending] == framed


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMED)
def test_what_breaks_the_library_is_one_sentence(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, as_text(NAMED[name]()))
    if name == HARMLESS:
        Tokenizer.load(path)
        return
    with pytest.raises(DataError) as error:
        Tokenizer.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
    assert capfd.readouterr() == ("", "")  # of Rust's own report either


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_what_lies_beside_is_not_parsed_beyond_its_limit(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, as_text(state_of("gpt2")))
    with (tmp_path / name).open("wb") as file:
        file.truncate(sandbox.MAX_BYTES * 100)  # holes
    assert Tokenizer.load(path).end_of_document == 0


def test_a_file_larger_than_any_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(sandbox.MAX_BYTES + 1)
    with pytest.raises(DataError, match="bytes, and at most"):
        Tokenizer.load(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_a_pipe_is_no_tokenizer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(DataError, match="is no regular file"):
        Tokenizer.load(tmp_path)


def test_what_was_believed_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    path = write(tmp_path, as_text(state_of("gpt2")))
    Tokenizer.load(path).save(tmp_path / "saved")
    assert len(list((own_cache / "tokenizers").iterdir())) == 2  # that file and ours
    monkeypatch.setattr(subprocess, "run", None)
    Tokenizer.load(path)
    Tokenizer.load(tmp_path / "saved")
    with pytest.raises(TypeError):  # another one is tried
        Tokenizer.load(write(tmp_path, as_text(state_of("gpt2")) + " "))


def test_without_a_cache_it_is_tried_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path / "file"))
    path = write(tmp_path, as_text(state_of("gpt2")))
    for _ in range(2):
        Tokenizer.load(path).save(tmp_path / "saved")


def test_nothing_that_lies_about_is_run_by_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json.py", "tokenizers.py", "sitecustomize.py"):
        (tmp_path / name).write_text("raise SystemExit(9)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    Tokenizer.load(write(tmp_path, as_text(state_of("gpt2"))))


def test_a_panic_in_use_is_a_sentence_and_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever the trial missed."""
    library = tokenizers.Tokenizer.from_str(as_text(NAMED["a catastrophic Split"]()))
    tokenizer = Tokenizer(library)
    for read in (tokenizer.encode, lambda text: tokenizer.encode_batch([text, text])):
        with pytest.raises(DataError, match="the tokenizer cannot encode this text: Onig"):
            read("a" * 60 + "b")
    assert capfd.readouterr() == ("", "")


@pytest.mark.campaign
def test_many_panics_at_once_block_nobody() -> None:
    """Each text of a batch reports its own; a pipe that nobody drains would be full after some 400."""
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.FixedLength(0)
    with (
        pytest.raises(DataError, match="the tokenizer cannot encode"),
        guard.catch_tokenizer_errors("encode", quiet=True),
    ):
        library.encode_batch_fast(["abc"] * 600, add_special_tokens=False)


def test_what_others_print_meanwhile_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    with guard.catch_tokenizer_errors("be used", quiet=True):
        os.write(2, b"from elsewhere")
    assert capfd.readouterr().err == "from elsewhere"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TypeError, OverflowError, MemoryError])
def test_what_is_not_the_librarys_passes_the_boundary(error: type[BaseException]) -> None:
    with pytest.raises(error), guard.catch_tokenizer_errors("be used", quiet=True):
        raise error


def test_our_own_tokenizers_are_calm(tmp_path: Path) -> None:
    """Nothing is redirected for them: that takes a few microseconds for each token."""
    for tokenizer in (Tokenizer.characters(TEXT), Tokenizer.train_bpe(iter([TEXT]), 300, sentences=True)):
        assert not tokenizer._quiet
        tokenizer.save(tmp_path)
        assert not Tokenizer.load(tmp_path)._quiet
    library = tokenizers.Tokenizer.from_str(as_text(state_of("llama2")))
    assert Tokenizer(library)._quiet


@pytest.mark.parametrize("token", ["<s>", ":▁x", "$A", "$", "a:1", "a b"])
def test_any_token_may_begin_every_text(token: str, tmp_path: Path) -> None:
    """Templates have a language of their own."""
    state = state_of("llama2")
    vocab = {token if name == "<s>" else name: number for name, number in state["model"]["vocab"].items()}
    sep = ["</s>", 2]
    frame = {"type": "RobertaProcessing", "sep": sep, "cls": [token, 1], "trim_offsets": True, "add_prefix_space": True}
    state |= {"model": state["model"] | {"vocab": vocab}, "post_processor": frame, "added_tokens": []}
    tokenizer = Tokenizer.load(write(tmp_path, as_text(state)), keep_frame=True)
    assert (tokenizer.beginning, tokenizer.ending) == ((1,), (2,))
    tokenizer.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved", keep_frame=True)
    assert (again.beginning, again.ending) == ((1,), (2,))
    assert again.encode("the cat").tolist() == tokenizer.encode("the cat").tolist()


def test_a_word_level_tokenizer_of_characters_names_the_unseen_one(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, as_text(state_of("own_characters"))))
    with pytest.raises(UnseenCharacterError, match="'猫'"):
        tokenizer.encode("the 猫")
    state = state_of("own_characters") | {"normalizer": replace("a", "b")}
    with pytest.raises(DataError, match="has no token for unknown words"):
        Tokenizer.load(write(tmp_path, as_text(state)))


def test_the_trial_ends_when_its_limits_are_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = as_text(state_of("gpt2")).encode()
    monkeypatch.setattr(sandbox, "SECONDS", 0.01)
    assert sandbox._tried(content) == "takes too much time to use"
    monkeypatch.setattr(sandbox, "SECONDS", 10)
    monkeypatch.setattr(sandbox, "MEMORY", 1 << 20)
    assert "memory" in str(sandbox._tried(content)) or "breaks" in str(sandbox._tried(content))


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_the_largest_published_kind_is_accepted(tmp_path: Path) -> None:
    """As many tokens and merges as Gemma 3 has, and as many bytes."""
    signs = [chr(code) for code in range(0x4E00, 0x4E00 + 700)]
    pairs = [(a, b) for a in signs for b in signs][:260_000]
    vocab = {token: n for n, token in enumerate([*signs, *(a + b for a, b in pairs)])}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    state = json.loads(library.to_str())
    state["model"]["merges"] *= 2
    Tokenizer.load(write(tmp_path, json.dumps(state, ensure_ascii=False, indent=2)))


def test_the_program_of_the_trial_needs_no_clearhead() -> None:
    code = f"import runpy, sys; sys.argv[1:] = ['5', '999999999', {str(Path(tokenizers.__file__).parents[1])!r}]; "
    code += f"runpy.run_path({sandboxed.__file__!r}, run_name='__main__'); "
    code += "sys.exit(any(name in sys.modules for name in ('clearhead', 'numpy', 'torch')))"
    content = as_text(state_of("gpt2")).encode()
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], input=content, capture_output=True, timeout=60)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"fault": None, "patterns": []})
