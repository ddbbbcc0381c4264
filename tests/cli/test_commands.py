"""Every verb as a person uses it, and as a program does."""

import math
import os
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command_helpers import TINY, Called, Caller, text, write_text

import clearhead
from clearhead import cli
from clearhead.cli.train import without_a_text
from clearhead.config import RunConfig
from clearhead.config.presets import PRESETS
from clearhead.workflows import Run

SUMMARY = {
    *("run", "parameters", "vocab_size", "steps", "seconds", "train_loss", "val_loss", "best_val_loss"),
    *("first_loss", "tokens_per_second", "bits_per_byte"),
}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a trained run, which no test changes."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "my.txt").write_text(text(900), encoding="utf-8")
    assert cli.run(["train", str(folder / "my.txt"), "--out", str(folder / "run"), *TINY]) == 0
    return str(folder / "run")


def test_describe_lists_every_weight_and_writes_files(call: Caller) -> None:
    shape = ("--preset", "vaswani2017", "--model.bias")
    lines = call("describe", *shape, "--by", "weight", "--csv", "weights.csv", "--report", "weights.html").out
    assert all(number in lines for number in ("262,656", "1,050,624", "2,099,712", "1,049,088", "3,072", "4,204,032"))
    assert Path("weights.csv").read_text(encoding="utf-8").count("262656") == 12
    assert "4,204,032" in Path("weights.html").read_text(encoding="utf-8")
    table = call("describe", *shape, "--by", "sublayer", "--json").json
    assert table.keys() == {"parameters", "flops_per_token", "bytes", "by", "rows"}
    assert (
        sum(row["parameters"] * row["count"] for row in table["rows"] if row["sublayer"] != "block")
        == (table["parameters"])
    )


def test_a_training_says_what_it_does_in_plain_lines(call: Caller) -> None:
    write_text()
    code, out, err = call("train", "my.txt", *TINY, "--model.block_size", "16")
    assert (code, err) == (0, "")
    assert "\x1b" not in out, "no colors where there is no terminal"
    for expected in (
        "text: 900 characters",
        "'small'",
        "1 layer, 2 heads, d_model 16",
        "4 steps of 4 x 16 tokens",
        "preflight passed",
        "step      1/4  loss ",
        "step      4/4  validation ",
        "clearhead generate runs/my-1",
        "clearhead resume runs/my-1 --train.steps 8",
        "clearhead serve runs/my-1",
    ):
        assert expected in out


def test_as_json_standard_output_is_one_object(call: Caller) -> None:
    write_text()
    trained = call("train", "my.txt", "--json", *TINY)
    assert trained.code == 0
    assert set(trained.json) == SUMMARY
    assert trained.json["run"] == "runs/my-1"
    assert trained.json["steps"] == 4
    assert "preflight passed" in trained.err
    resumed = call("resume", "--json", "--train.steps", "6")
    assert set(resumed.json) == SUMMARY
    assert resumed.json["steps"] == 6
    assert resumed.json["first_loss"] == trained.json["first_loss"]


def test_every_other_verb_as_json(call: Caller, run: str) -> None:
    assert call("generate", run, "the", "--json", "--num-samples", "3", "--max-new-tokens", "4").json.keys() == {
        "prompt",
        "texts",
    }
    score = call("evaluate", run, "--json").json
    assert score.keys() == {"loss", "perplexity", "bits_per_byte", "tokens"}
    assert math.isclose(score["perplexity"], math.exp(score["loss"]))
    assert {"parameters", "parts", "flops_per_token", "bytes"} <= call("describe", run, "--json").json.keys()
    assert call("list", "--json").json.keys() == {"runs", "presets", "corpora"}
    assert call("train", "--print-config", "--json").json.keys() == {"seed", "objective", "model", "data", "train"}


@pytest.mark.parametrize("terminal", [True, False])
def test_what_the_object_holds_is_not_shown_as_well(
    terminal: bool, call: Caller, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if terminal:
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
    for line in (
        "generate RUN the --max-new-tokens 4",
        "generate RUN the --max-new-tokens 4 --num-samples 2",
        "evaluate RUN",
        "ablate RUN --tokens 9",
        "describe RUN",
        "list",
        "worked-example",
        "export RUN --to safetensors out",
        "doctor list",
        "doctor explain M01",
        "completion bash",
    ):
        done = call(*(run if word == "RUN" else word for word in line.split()), "--json")
        assert (done.code, done.err) == (0, "")
        assert done.json


def test_a_training_as_json_shows_its_progress_alone(call: Caller) -> None:
    write_text()
    trained = call("train", "my.txt", "--json", *TINY)
    assert "step      4/4  validation " in trained.err
    assert "What you can do next" not in trained.err
    assert "nats per token" not in trained.err


def test_a_training_of_nothing_says_what_it_takes(call: Caller) -> None:
    begun = call("train", *TINY, "--model.block_size", "16", "--train.eval_tokens", "64")
    lines = begun.out.splitlines()
    first, second, *_ = (line for line in lines if not line.startswith("preparing the data"))  # said where it is slow
    assert first.startswith("no text is named: training on 'stories', which ships with Clearhead; for your own text:")
    assert without_a_text({}, None, None).startswith("no text is named: training for 3 minutes on 'stories', which ")
    assert "training for 2 minutes on" in without_a_text({}, "tiny", 2)
    assert second.startswith("text: ")
    write_text()
    assert "no text is named" not in call("train", "my.txt", *TINY).out
    Path("my.toml").write_text("[data]\nsource = 'my.txt'", encoding="utf-8")
    assert "no text is named" not in call("train", "--config", "my.toml", *TINY).out


def test_a_csv_gets_a_note(call: Caller) -> None:
    for name, has_note in (("my.csv", True), ("MY.CSV", True), ("my.txt", False)):
        write_text(name=name)
        assert ("a CSV is read as plain text" in call("train", name, *TINY).out) == has_note


def test_temperature_0_is_greedy(call: Caller, run: str) -> None:
    greedy = generated(call, run, "the", "-n", "20", "--greedy")
    assert greedy.code == 0
    assert generated(call, run, "the", "-n", "20", "-t", "0") == greedy
    assert generated(call, run, "the", "-n", "20", "--temperature=0.0", "--greedy", "--engine", "eager") == greedy


def test_what_a_time_picks_is_printed(call: Caller) -> None:
    printed = [tomllib.loads(call("train", "--minutes", minutes, "--print-config").out) for minutes in ("0.5", "15")]
    for settings, name in zip(printed, ("tiny", "medium"), strict=True):
        assert settings["model"]["d_model"] == PRESETS[name].model["d_model"]
        assert settings["model"]["n_layers"] == PRESETS[name].model["n_layers"]


@pytest.mark.parametrize("argv", [["generate", "x", "y"], ["train", "nothing here"], ["resume"], ["list", "--x"]])
def test_a_failure_as_json_is_one_object_too(argv: list[str], call: Caller) -> None:
    failed = call(*argv, "--json")
    assert failed.json["exit_code"] == failed.code != 0
    assert failed.err == "", "what the object says is not said again"


SWITCHES = [
    (["--no-model.tie_embeddings"], "model", {"tie_embeddings": False}),
    (["--model.tie_embeddings", "false"], "model", {"tie_embeddings": False}),
    (["--model.tie_embeddings=off"], "model", {"tie_embeddings": False}),
    (["--model.tie_embeddings", "my.txt"], "model", {"tie_embeddings": True}),
    (["--model.bias"], "model", {"bias": True}),
    (["--train.save-every", "3"], "train", {"save_every": 3}),
    (["--train.save_every=3"], "train", {"save_every": 3}),
    (["--model.sliding_window", "none"], "model", {"sliding_window": None}),
    (["--train.learning-rate", "1e-3"], "train", {"learning_rate": 1e-3}),
]


@pytest.mark.parametrize(("argv", "room", "expected"), SWITCHES, ids=lambda value: str(value))
def test_options_however_they_are_written(argv: list[str], room: str, expected: dict[str, Any], call: Caller) -> None:
    paths = [] if "my.txt" in argv else ["my.txt"]
    printed = tomllib.loads(call("train", *argv, *paths, "--print-config").out)
    assert printed["data"]["source"] == "my.txt"
    for option, value in expected.items():
        assert printed[room].get(option) == value


@pytest.mark.parametrize("name", PRESETS)
def test_the_printed_options_are_the_options(name: str, call: Caller) -> None:
    source = "my.tsv" if PRESETS[name].objective == "seq2seq" else "my.txt"
    first = call("train", source, "--preset", name, "--print-config", "--model.dropout", "0.5").out
    Path("my.toml").write_text(first, encoding="utf-8")
    assert call("train", "--config", "my.toml", "--print-config").out == first
    changed = RunConfig.read(tomllib.loads(call("train", "--config", "my.toml", "--seed", "9", "--print-config").out))
    assert changed == RunConfig.read(tomllib.loads(first), {"seed": 9}), "flags win over the file"


def test_a_file_of_options_trains(call: Caller) -> None:
    write_text()
    Path("my.toml").write_text(
        call("train", "my.txt", *TINY, "--model.block_size", "16", "--print-config").out, "utf-8"
    )
    assert call("train", "--config", "my.toml", "--train.steps", "2", "--json").json["steps"] == 2


def sources() -> dict[str, str]:
    """Texts of all kinds, in the current folder."""
    Path("folder/sub").mkdir(parents=True)
    write_text(300, "folder/a.txt")
    write_text(250, "folder/sub/b.md")
    write_text(300, "two hundred.txt")
    write_text(200, "200.txt")
    lines = text(900).split("\n")
    Path("a.jsonl").write_text("\n".join(f'{{"text": "{line}"}}' for line in lines), encoding="utf-8")
    Path("line.txt").write_text(text(900).replace("\n", ""), encoding="utf-8")
    Path("crlf.txt").write_bytes(text(900).replace("\n", "\r\n").encode())
    Path("ünïcode 日本.txt").write_text("日本語 für immer 🙂 " * 20, encoding="utf-8")
    return {
        "folder": "folder-1",
        "two hundred.txt": "two hundred-1",
        "200.txt": "200-1",
        "a.jsonl": "a-1",
        "line.txt": "line-1",
        "crlf.txt": "crlf-1",
        "ünïcode 日本.txt": "ünïcode 日本-1",
    }


def test_whatever_holds_text_is_a_source(call: Caller) -> None:
    for source, name in sources().items():
        done = call("train", source, "--json", *TINY)
        assert done.code == 0, (source, done.err)
        assert done.json["run"] == f"runs/{name}"
        assert call("evaluate", source, "--json").json["tokens"] >= 199


def test_standard_input_is_a_source_and_a_prompt(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    speak(monkeypatch, text(900).encode())
    assert call("train", "-", "--json", *TINY).json["run"] == "runs/stdin-1"
    assert call("resume", "--train.steps", "6").code == 0, "what was read once is kept"
    speak(monkeypatch, b"the king")
    assert call("generate", "-", "--max-new-tokens", "3").out.startswith("the king")
    speak(monkeypatch, b"the \xff")
    refused = call("generate", "runs/stdin-1", "-")
    assert refused.code == 3
    assert "not UTF-8 at byte 4" in refused.err


def speak(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


def generated(call: Caller, *argv: str) -> Called:
    return call("generate", *argv, "--seed", "1")


def test_a_text_is_shown_with_its_prompt(call: Caller, run: str) -> None:
    shown = generated(call, run, "the", "--max-new-tokens", "20")
    assert shown.code == 0
    assert shown.out.startswith("the")
    assert generated(call, run, "--max-new-tokens", "20", "the").out == shown.out
    assert generated(call, run, "--no-greedy", "the", "--max-new-tokens", "20").out == shown.out
    assert generated(call, run, "--greedy", "the", "--max_new_tokens", "20").out != shown.out
    as_json = generated(call, run, "the", "--max-new-tokens", "20", "--json").json
    assert as_json == {"prompt": "the", "texts": [shown.out.removesuffix("\n")]}


def test_several_texts_are_told_apart(call: Caller, run: str) -> None:
    shown = generated(call, run, "the", "--num-samples", "3", "--max-new-tokens", "5").out
    texts = generated(call, run, "the", "--num-samples", "3", "--max-new-tokens", "5", "--json").json["texts"]
    assert shown == "".join(f"--- {number} ---\n{text}\n" for number, text in enumerate(texts, start=1))


@pytest.mark.parametrize("stop", ["e", r"\n", "\n", "th", "a\\", r"\x", "ж"])
def test_a_text_ends_before_its_stop_string(stop: str, call: Caller, run: str) -> None:
    argv = [run, "the", "--max-new-tokens", "60", "--json"]
    whole = generated(call, *argv).json["texts"][0].removeprefix("the")
    stopped = generated(call, *argv, "--stop", stop).json["texts"][0].removeprefix("the")
    assert stopped == whole.split(stop.replace(r"\n", "\n"))[0]


def test_what_looks_like_an_option_can_be_a_prompt(call: Caller, run: str) -> None:
    refused = call("generate", run, "--max-new-tokens", "3", "--", "--greedy")
    assert refused.code == 3, "it is read, and its hyphens were never seen"
    assert "'-'" in refused.err


def test_a_prompt_longer_than_the_window_is_said_on_standard_error(call: Caller, run: str) -> None:
    long = generated(call, run, "the king " * 100, "--max-new-tokens", "4")
    assert long.code == 0
    assert long.out.startswith("the king the king")
    assert "more than the model's block_size" in long.err


def test_a_verb_that_takes_a_run_takes_the_newest(call: Caller) -> None:
    write_text()
    for _ in range(2):
        assert call("train", "my.txt", *TINY).code == 0
    losses = [call("evaluate", *which, "--json").json for which in ([], ["my-2"], ["runs/my-2"], ["runs/my-2/"])]
    assert losses == losses[:1] * 4
    assert call("resume", "my-1", "--train.steps", "5").code == 0
    assert call("resume", "--json", "--train.steps", "6").json["run"] == "runs/my-1", "it was written to last"
    assert call("describe").code == call("generate", "the", "--max-new-tokens", "1").code == 0
    assert list(call("list", "--json").json["runs"]) == ["runs/my-1", "runs/my-2"]


def test_what_a_model_costs(call: Caller, run: str) -> None:
    lines = call("describe", run).out.splitlines()
    shown = dict(line.split()[:2] for line in lines if line[:10].strip() and "%" in line)
    total = next(line.split()[1] for line in lines if line.startswith("parameters"))
    assert sum(int(count.replace(",", "")) for count in shown.values()) == int(total.replace(",", ""))
    assert int(total.replace(",", "")) == sum(p.numel() for p in Run(Path(run)).model().parameters())
    assert "124,439,808" in call("describe", "--preset", "gpt2").out  # GPT-2's size, as the world knows it
    assert "813,440" in call("describe", "--preset", "tutorial").out  # at 65 characters
    shared = call("describe", "--preset", "tutorial", "--devices", "2", "--tflops", "1", "--json").json
    assert shared["per_device"]["ddp"]["weights"] == 4 * 813_440
    assert shared["per_device"]["fsdp"]["weights"] == 2 * 813_440 + 2 * 128  # of an odd vocabulary, the larger part
    assert call("describe", "--preset", "tutorial", "--devices", "0").code == 2
    assert call("describe", "--preset", "tutorial", "--devices", "2", "--by", "weight").code == 2
    assert call("describe", "--preset", "tutorial", "--tflops", "2").code == 2


def test_the_list_names_everything(call: Caller) -> None:
    shown = call("list").out
    assert "none yet; 'clearhead train' makes one" in shown
    for name in (*PRESETS, "stories", "shakespeare"):
        assert f"  {name} " in shown


def test_the_version(call: Caller) -> None:
    assert call("--version").out == f"clearhead {clearhead.__version__}\n"


def test_the_report_asks_nothing_of_the_network(run: str) -> None:
    page = (Path(run) / "report.html").read_text(encoding="utf-8")
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page


IMPLIED = {
    "generate": ["generate", "--max-new-tokens", "2"],
    "evaluate": ["evaluate"],
    "ablate": ["ablate", "--tokens", "9"],
    "describe": ["describe"],
    "export": ["export", "--to", "safetensors", "out.safetensors"],
}


@pytest.mark.parametrize("verb", IMPLIED)
def test_the_run_that_is_implied_is_named_on_standard_error(verb: str, call: Caller) -> None:
    write_text()
    assert call("train", "my.txt", "--out", "runs/a", *TINY).code == 0
    assert call(*IMPLIED[verb]).err.splitlines()[0] == "clearhead: using runs/a, the newest run"
    Path("runs/b").mkdir()
    Path("runs/b/clearhead.toml").write_bytes(Path("runs/a/clearhead.toml").read_bytes())  # it is just beginning
    expected = "clearhead: using runs/a, the newest run that has a model"
    assert call(*IMPLIED[verb], "--json").err.splitlines()[0] == expected
    assert "using" not in call(verb, "runs/a", *IMPLIED[verb][1:]).err


def test_a_finished_run_is_resumed_by_saying_that_it_is_finished(call: Caller) -> None:
    write_text()
    assert call("train", "my.txt", "--out", "runs/a", *TINY).code == 0
    code, out, err = call("resume")
    assert (code, err) == (0, "clearhead: using runs/a, the newest run\n")
    assert out == (
        "runs/a has finished its 4 steps, and is left as it is; "
        "to train it longer: clearhead resume runs/a --train.steps 8\n"
    )


def test_a_source_without_its_target_is_refused(call: Caller) -> None:
    """It was learned as a text, where a translator was meant."""
    write_text(name="a.en")
    code, _, err = call("train", "--source", "a.en", *TINY)
    assert (code, err) == (
        2,
        "clearhead: --source a.en is one side of sentence pairs; name the other with --target, or, to train on it as a "
        "text, leave --source out: clearhead train a.en\n",
    )
    assert not Path("runs").exists()
    Path("pairs.tsv").write_text("ein Mann\ta man\n" * 40, encoding="utf-8")
    Path("more.toml").write_text('data.target = "a.de"\n', encoding="utf-8")
    for rest in (["pairs.tsv"], ["a.en", "--target", "a.de"], ["a.en", "--config", "more.toml"]):
        assert call("train", "--source", *rest, "--print-config").code == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a named pipe of POSIX")
def test_an_evaluation_that_waits_for_a_pipe_says_so(call: Caller, run: str) -> None:
    os.mkfifo("pipe.txt")
    writer = threading.Thread(target=lambda: Path("pipe.txt").write_text(text(900), encoding="utf-8"))
    writer.start()
    code, _, err = call("evaluate", run, "pipe.txt")
    writer.join(timeout=60)
    pipe = Path("pipe.txt").absolute()
    assert (code, err) == (0, f"clearhead: reading {pipe}: waiting for it to be written to, and closed\n")
