"""`clearhead import`, `export` and `train --from`, as a person uses them; and folders that mean harm."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_helpers import QUICK, TINY, Caller, text
from safetensors.torch import load_file, save_file

from clearhead import cli

COMMAND = [sys.executable, "-c", "from clearhead.cli import main; main()"]
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trained run, which is a Hugging Face folder; no test changes it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "my.txt").write_text(text(900), encoding="utf-8")
    assert cli.run(["train", str(folder / "my.txt"), "--out", str(folder / "run"), *TINY]) == 0
    return str(folder / "run")


def test_import_says_what_can_be_done_next(call: Caller, run: str) -> None:
    code, out, err = call("import", run, "--out", "mine")
    assert (code, err) == (0, "")
    commands = [line.strip() for line in out.splitlines() if line.startswith("  clearhead ")]
    assert commands == ["clearhead generate mine 'Once upon a time'", "clearhead train my.txt --from mine"]
    assert "parameters, a decoder" in out
    assert call("generate", "mine", "the", "--max-new-tokens", "4").code == 0
    assert call("describe", "mine").code == call("list").code == 0
    refused = call("resume", "mine")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "clearhead train my.txt --from mine" in refused.err


def test_import_as_json(call: Caller, run: str) -> None:
    result = call("import", run, "--json").json
    assert result.keys() == {"run", "parameters", "architecture"}
    assert result["run"] == "runs/run-1"


def test_fine_tuning_shows_a_sample_before_and_after(call: Caller, run: str) -> None:
    Path("other.txt").write_text(text(700), encoding="utf-8")
    done = call("train", "other.txt", "--from", run, "--out", "tuned", *QUICK)
    assert (done.code, done.err) == (0, "")
    samples = Path("tuned/samples.md").read_text(encoding="utf-8").split("```text\n")[1:]
    assert len(samples) >= 2
    for sample in (samples[0], samples[-1]):
        shown = sample.split("\n```")[0].strip().splitlines()[0]
        assert shown in done.out
    assert "a tenth of a first training's" in done.out
    printed = call("train", "other.txt", "--from", run, "--print-config").out
    assert "d_model = 16" in printed


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model.d_model", "32"], "model.d_model is 16 in"),
        (["--preset", "small"], "--preset small would contradict"),
        (["--data.tokenizer", "bpe"], "brings its tokenizer"),
    ],
)
def test_what_contradicts_the_run(argv: list[str], message: str, call: Caller, run: str) -> None:
    Path("other.txt").write_text(text(700), encoding="utf-8")
    refused = call("train", "other.txt", "--from", run, *argv)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert message in refused.err


def test_export_prints_and_saves_its_certificate(call: Caller, run: str) -> None:
    shown = call("export", run, "--to", "safetensors", "my.safetensors")
    assert (shown.code, shown.err) == (0, "")
    for expected in (
        "my.safetensors, checked with clearhead",
        "full window",
        "batch padded on the left",
        "certificate: passed",
    ):
        assert expected in shown.out
    result = call("export", run, "--to", "safetensors", "again", "--json").json
    saved = json.loads(Path("again/certificate.json").read_text(encoding="utf-8"))
    assert result == {**saved, "out": "again/model.safetensors", "certificate": "again/certificate.json"}
    assert saved.keys() == {
        *("format", "clearhead", "peer", "differences", "tolerance", "greedy_tokens", "greedy_equal"),
        *("tokenizer_characters", "tokenizer_equal", "passed", "reason", "unread"),
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("export", "export needs an output and a format"),
        ("export RUN --to hf", "name the output: clearhead export"),
        ("export RUN out", "export needs an output and a format"),
        ("export RUN --to onx out", "did you mean 'onnx'?"),
        ("export RUN --to hf out more", "'more' is one argument too many"),
        ("import", "model is missing; see 'clearhead import --help'"),
    ],
)
def test_usage(line: str, message: str, call: Caller, run: str) -> None:
    refused = call(*(run if word == "RUN" else word for word in line.split()))
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert message in refused.err


def test_a_certificate_that_failed_is_exit_code_1(call: Caller, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from clearhead.interop import OwnPeer

    logits = OwnPeer.logits
    calls: list[int] = []

    def once_wrong(self: OwnPeer, *argv: Any) -> torch.Tensor:
        calls.append(1)
        return logits(self, *argv) + (0.1 if len(calls) == 2 else 0)

    monkeypatch.setattr(OwnPeer, "logits", once_wrong)
    failed = call("export", run, "--to", "safetensors", "out")
    assert failed.code == 1
    assert failed.err.count("\n") == 1
    assert "see out/certificate.json" in failed.err


class Bomb:
    """Unpickling it would create a folder."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def truncated(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def renamed(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["model.layers.0.self_attn.q_proj.wait"] = tensors.pop("model.layers.0.self_attn.q_proj.weight")
    save_file(tensors, folder / WEIGHTS)


def wrong_shape(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["model.norm.weight"] = torch.ones(17)
    save_file(tensors, folder / WEIGHTS)


def oversized(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(settings | {"intermediate_size": 2**40}), encoding="utf-8")


def outside(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / WEIGHTS)
    where = dict.fromkeys(load_file(folder.parent / WEIGHTS), f"../{WEIGHTS}")
    (folder / INDEX).write_text(json.dumps({"weight_map": where}), encoding="utf-8")


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))


HOSTILE: list[tuple[Callable[[Path], None], str]] = [
    (truncated, "cannot be read as safetensors: "),
    (renamed, "q_proj.weight is missing, model.layers.0.self_attn.q_proj.wait is left over"),
    (wrong_shape, "model.norm.weight has shape [17] instead of [16]"),
    (oversized, "too small for d_ff = 1099511627776"),
    (outside, "'../model.safetensors', which is not the plain name of a file in it"),
    (pickled, "pytorch_model.bin is a pickle, which can run code when read"),
]


@pytest.mark.parametrize(("spoil", "message"), HOSTILE, ids=lambda value: getattr(value, "__name__", ""))
def test_a_folder_that_means_harm(spoil: Callable[[Path], None], message: str, call: Caller, run: str) -> None:
    folder = Path("stranger")
    folder.mkdir()
    for name in (WEIGHTS, "config.json", "tokenizer.json"):
        (folder / name).write_bytes(Path(run, name).read_bytes())
    assert call("import", str(folder), "--out", "whole").code == 0
    spoil(folder)
    refused = call("import", str(folder))
    assert refused.code == 3
    assert refused.err.startswith("clearhead: stranger")
    assert refused.err.count("\n") == 1
    assert message in refused.err
    assert not Path("ran").exists()
    assert not Path("runs").exists()
    assert call("train", "my.txt", "--from", str(folder)).code == 3
    if spoil is pickled:  # one in a process of its own, whose exit code is what a shell sees
        done = subprocess.run([*COMMAND, "import", str(folder)], capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (3, refused.err)


def test_all_harm_is_refused_before_torch_is_loaded(call: Caller, run: str) -> None:
    names = []
    for spoil, _ in HOSTILE:
        folder = Path(spoil.__name__, "folder")
        folder.mkdir(parents=True)
        for name in (WEIGHTS, "config.json", "tokenizer.json"):
            (folder / name).write_bytes(Path(run, name).read_bytes())
        spoil(folder)
        names.append(str(folder))
    program = (
        "import sys\nfrom clearhead import cli\n"
        f"assert [cli.run(['import', name]) for name in {names}] == {[3] * len(names)}\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_a_strangers_name_does_not_drive_the_terminal(call: Caller, run: str) -> None:
    folder = Path("stranger")
    folder.mkdir()
    for name in (WEIGHTS, "config.json", "tokenizer.json"):
        (folder / name).write_bytes(Path(run, name).read_bytes())
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, "\x1b]0;title\x07": torch.zeros(1)}, folder / WEIGHTS)
    refused = call("import", str(folder))
    assert refused.code == 3
    assert "\\x1b]0;title\\x07 is left over" in refused.err
    assert "\x1b" not in refused.err


@pytest.mark.parametrize("settings", [{"eos_token_id": 2**62}, {"eos_token_id": [2**62, 0]}])
def test_a_token_beyond_the_vocabulary_is_no_token(settings: dict[str, Any], call: Caller, run: str) -> None:
    folder = Path("stranger")
    folder.mkdir()
    for name in (WEIGHTS, "config.json", "tokenizer.json"):
        (folder / name).write_bytes(Path(run, name).read_bytes())
    (folder / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    assert call("import", str(folder), "--out", "whole").code == 0
