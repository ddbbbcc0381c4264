"""Bad input gets one sentence on standard error, and its exit code (2 usage, 3 data, 1 the run); never a traceback."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_helpers import TINY, Caller, text, write_text

from clearhead import cli


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "my.txt").write_text(text(900), encoding="utf-8")
    assert cli.run(["train", str(folder / "my.txt"), "--out", str(folder / "run"), *TINY]) == 0
    return folder / "run"


@pytest.fixture
def run(trained: Path) -> str:
    shutil.copytree(trained, "run")
    return "run"


def refused(call: Caller, code: int, *argv: str) -> str:
    """The sentence."""
    done = call(*argv)
    assert done.code == code, done
    assert done.err.startswith("clearhead: ")
    assert done.err.count("\n") == 1, "one line"
    assert "Traceback" not in done.err
    assert done.out == ""
    return done.err


TEXTS: dict[str, tuple[bytes, str]] = {
    "empty.txt": (b"", "is empty; give a text of at least 200 characters"),
    "blank.txt": (b" \n" * 200, "is empty"),
    "short.txt": (b"a" * 199, "has 199 characters; at least 200 are needed"),
    "one.txt": (b"a" * 400, "a single repeated character"),
    "binary.txt": (bytes(range(256)) * 4, "is a binary file"),
    "utf16.txt": (b"\xff\xfe" + ("hello " * 100).encode("utf-16-le"), "is UTF-16; save it as UTF-8"),
    "latin1.txt": (b"hello world " * 30 + b"\xe9 and more", "byte 0xe9 at offset 360"),
    "cut.txt": (b"hello world " * 30 + "é".encode()[:1], "at offset 360"),
    "nul.txt": (b"hello world " * 30 + b"\0 and more", "NUL character at byte 360"),
    "surrogate.jsonl": (rb'{"text": "abc \ud800 def"}', "line 1: a lone surrogate U+D800 at offset 4"),
    "nul.jsonl": (rb'{"text": "abc \u0000 def"}', "line 1: a NUL character"),
    "number.jsonl": (b'{"text": "fine"}\n{"text": 5}', "line 2: no 'text'"),
    "broken.jsonl": (b'{"text": "fine"}\n{"text"', "line 2: not JSON"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_none(name: str, call: Caller) -> None:
    content, message = TEXTS[name]
    Path(name).write_bytes(content)
    assert message in refused(call, 3, "train", name, *TINY)
    assert not list(Path("runs").iterdir()), "no empty run is left behind"


def test_a_source_that_is_not_there(call: Caller) -> None:
    write_text()
    assert "did you mean 'my.txt'?" in refused(call, 3, "train", "my.tx")
    assert "the corpora of text are stories, shakespeare" in refused(call, 3, "train", "qqqqqqqq")
    Path("folder").mkdir()
    Path("folder/a.py").write_text("x = 1", encoding="utf-8")
    assert "folder holds no .txt, .md, .jsonl or .parquet file" in refused(call, 3, "train", "folder")


USAGE = [
    ("trian", "did you mean 'train'?"),
    ("train my.txt --train.stpes 5", "unknown option '--train.stpes'; did you mean '--train.steps'?"),
    ("train my.txt --modle.d_model 5", "did you mean '--model.d_model'?"),
    ("train my.txt more", "'more' is one argument too many"),
    ("train my.txt my.txt", "for several files name their folder, or a pattern in quotes"),
    ("train my.txt --train.steps", "--train.steps needs a value; see"),
    ("train my.txt --train.steps x", "train.steps must be a whole number, not 'x'"),
    ("train my.txt --train.steps 0", "train.steps must be at least 1, not 0"),
    (
        "train my.txt --model.norm batchnorm",
        "model.norm must be 'layernorm', 'rmsnorm' or 'rmsnorm_plus_one', not 'batchnorm'",
    ),
    ("train my.txt --model.d_model 33 --model.n_heads 4", "d_model (33) is not divisible by n_heads (4)"),
    ("train my.txt --model.d_model 12 --model.n_heads 4", "choose an even width"),
    ("train my.txt --model.block_size 810", "block_size 810 is longer than the training text of 810 tokens"),
    ("train my.txt --model.vocab_size 3", "too small for the tokenizer"),
    ("train my.txt --train.learning_rate nan", "train.learning_rate"),
    ("train my.txt --train.learning_rate inf", "train.learning_rate must be finite, not 'inf'"),
    ("train my.txt --train.device nonsense", "no device 'nonsense'"),
    ("train my.txt --train.threads 100000", "train.threads"),
    ("train my.txt --seed 99999999999999999999", "seed"),
    ("train my.txt --preset smal", "did you mean 'small'?"),
    ("train my.txt --minutes 1 --train.steps 5", "both say how long to train"),
    ("train my.txt --minutes 0", "minutes must be above 0"),
    ("train my.txt --minutes -1", "minutes must be above 0"),
    ("train my.txt --minutes nan", "minutes must be above 0"),
    ("train my.txt --config unknown.toml", "train: unknown option 'stpes'; did you mean 'steps'?"),
    ("train my.txt --config number.toml", "train must be a table of options, not 5"),
    ("train my.txt --config broken.toml", "broken.toml cannot be read as TOML"),
    ("train my.txt --config latin1.toml", "latin1.toml cannot be read as TOML"),
    ("train my.txt --config nothing.toml", "there is no config file nothing.toml"),
    ("train my.txt --config .", "cannot be read as TOML"),
    ("train my.txt --out run", "run already holds a run"),
    ("train my.txt --out .", "not empty"),
    ("train --print-config --model.d_model 33", "d_model (33) is not divisible"),
    ("resume run --train.steps 2", "has done 4 steps already"),
    ("resume run --model.n_layers 2", "same model, data and seed"),
    ("resume run --seed 2", "same model, data and seed"),
    ("generate run the --temperature 0 --greedy false", "temperature 0 is greedy; leave out greedy = false"),
    (
        "generate run the --greedy --temperature 0.7",
        "--greedy takes the likeliest token every time, whatever the --temp",
    ),
    ("generate run the --temperature -1", "temperature must be at least 0, not -1"),
    ("generate run the --temperature nan", "temperature must be finite, not 'nan'"),
    ("generate run the --temperature cold", "temperature must be a number, not 'cold'"),
    (
        "generate run the --engine plain",
        "engine must be 'auto', 'eager' or 'native', not 'plain'; did you mean 'eager'?",
    ),
    ("train my.txt --minutes soon", "--minutes must be a number, not 'soon'; see 'clearhead train --help'"),
    ("train my.txt --out", "--out needs a value; see 'clearhead train --help'"),
    ("train my.txt --lr 3", "unknown option '--lr'; did you mean '--train.learning_rate'?"),
    ("train my.txt --layers 3", "unknown option '--layers'; did you mean '--model.n_layers'?"),
    ("train my.txt --verbosity 3", "unknown option '--verbosity'; see 'clearhead train --help'"),
    ("help generat", "there is no verb 'generat'; did you mean 'generate'?"),
    ("completion", "name your shell: clearhead completion bash, zsh or fish"),
    ("completion powershell", "there is no script for 'powershell' (shells: bash, zsh, fish)"),
    ("export run out --out out2 --to hf", "'out' and 'out2' both name the output"),
    ("generate run the --top-k 0", "top_k"),
    ("generate run the --top-p 1.5", "top_p"),
    ("generate run the --min-p 2", "min_p"),
    ("generate run the --max-new-tokens 0", "max_new_tokens"),
    ("generate run the --num-samples x", "num_samples must be a whole number, not 'x'"),
    ("generate run the --num-samples none", "num_samples"),
    ("generate run the --repetition-penalty inf", "repetition_penalty"),
    ("generate run the --seed -1", "seed"),
    ("generate run the --stop=", "an empty stop string"),
    ("generate run the --device meta", "no device 'meta'"),
    ("generate run the more", "'more' is one argument too many"),
    ("evaluate run my.txt --source other.txt", "'my.txt' and 'other.txt' both name the source"),
    ("train my.txt --source other.txt", "'my.txt' and 'other.txt' both name the source"),
    (
        "train my.txt --print-config --objective maskd",
        "objective must be 'causal', 'masked' or 'seq2seq', not 'maskd'; did you mean",
    ),
    ("evaluate run --batch-size 0", "batch_size must be at least 1, not 0"),
    ("evaluate run --batch-size -2", "batch_size must be at least 1, not -2"),
    ("evaluate run --batch-size x", "batch_size must be a whole number, not 'x'"),
    ("describe run --preset gpt2", "a run or a preset, not both"),
    ("describe --preset gpt3", "did you mean 'gpt2'?"),
    ("describe --model.n_layers 0", "model.n_layers"),
    ("list everything", "one argument too many"),
]


@pytest.mark.parametrize(("line", "message"), USAGE, ids=[line for line, _ in USAGE])
def test_usage(line: str, message: str, call: Caller, run: str) -> None:
    write_text()
    for name, content in (
        ("unknown", b"[train]\nstpes = 5"),
        ("number", b"train = 5"),
        ("broken", b"[model"),
        ("latin1", b"# \xe9"),
    ):
        Path(f"{name}.toml").write_bytes(content)
    assert message in refused(call, 2, *line.split())


DATA = [
    ("resume", "there is no run here yet; 'clearhead train' makes one"),
    ("generate nothing the", "there is no run 'nothing'"),
    ("generate folder the", "folder is not a run: it has no clearhead.toml"),
    ("generate run thé", "has never seen the character 'é' (U+00E9) at line 1, column 3"),
    ("evaluate run empty.txt", "there is nothing to evaluate"),
    ("evaluate run nothing.txt", "there is no file, folder or corpus 'nothing.txt'"),
    ("evaluate run foreign.txt", "has never seen the character 'X'"),
    ("train my.txt --data.tokenizer nothing.json", "there is no tokenizer at nothing.json"),
    ("train my.txt --data.tokenizer my.txt", "my.txt is not a tokenizer.json"),
    ("describe nothing", "there is no run 'nothing'"),
]


@pytest.mark.parametrize(("line", "message"), DATA, ids=[line for line, _ in DATA])
def test_data(line: str, message: str, call: Caller, run: str) -> None:
    write_text()
    Path("empty.txt").touch()
    Path("foreign.txt").write_text("the king says X", encoding="utf-8")
    Path("folder").mkdir()
    assert message in refused(call, 3, *line.split())


def test_bytes_that_are_no_text_in_a_prompt(call: Caller, run: str) -> None:
    assert "the argument 'the \\udcff' is not UTF-8" in refused(call, 2, "generate", run, os.fsdecode(b"the \xff"))


def spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if how == "truncated" else b"\0" + content[1:])


@pytest.mark.parametrize("how", ["missing", "truncated", "altered"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "clearhead.toml"])
def test_a_damaged_run(name: str, how: str, call: Caller, run: str) -> None:
    write_text()
    spoil(Path(run) / name, how)
    for argv in (("generate", run, "the"), ("evaluate", run, "my.txt")):
        message = refused(call, 3, *argv)
        assert run in message
        assert name in message or name == "clearhead.toml"


def test_what_resume_says_of_damage(call: Caller, run: str) -> None:
    newest = max((Path(run) / "checkpoints").iterdir())
    spoil(newest / "model.safetensors", "truncated")
    shown = call("resume", run)
    assert shown.code == 0
    assert f"the checkpoint {newest} is damaged (model.safetensors has " in shown.out
    for checkpoint in (Path(run) / "checkpoints").iterdir():
        spoil(checkpoint / "model.safetensors", "altered")
    assert "every checkpoint in run/checkpoints is damaged" in refused(call, 3, "resume", run)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_does_not_take_it(code: int, call: Caller, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        done = call("resume", run, "--train.steps", "6")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert os.strerror(code) in done.err
    assert call("resume", run, "--train.steps", "6").code == 0, "nothing is lost"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_folder_that_is_read_only(call: Caller) -> None:
    write_text()
    Path("locked").mkdir(mode=0o500)
    assert "locked/run" in refused(call, 1, "train", "my.txt", "--out", "locked/run", *TINY)


@pytest.mark.parametrize("break_it", [lambda lock: (lock.unlink(missing_ok=True), lock.mkdir())])
def test_a_lock_that_is_none(break_it: Callable[[Path], object], call: Caller, run: str) -> None:
    break_it(Path(run) / ".lock")
    assert "cannot write in run" in refused(call, 1, "resume", run)


def test_the_cache_cannot_be_written(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text().rename("my.md")
    Path("file").touch()
    monkeypatch.setenv("CLEARHEAD_CACHE", "file/below")
    assert "set CLEARHEAD_CACHE to a folder that can be written" in refused(call, 3, "train", "my.md", *TINY)


def test_a_training_that_diverges(call: Caller) -> None:
    write_text()
    options = [*TINY, "--train.steps", "40", "--train.learning_rate", "1e38", "--train.optimizer", "adamw"]
    done = call("train", "my.txt", *options, "--train.max_grad_norm", "inf", "--train.warmup_steps", "0")
    assert done.code in (0, 1)
    assert "Traceback" not in done.err
    assert done.code == 0 or done.err.count("\n") == 1
