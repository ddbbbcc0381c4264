"""The verb `trace`: runs, presets and strangers, its files, and what it refuses."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest
from command_helpers import TINY, Caller, write_text
from page_reader import Page

import clearhead
from clearhead.inspection import TraceTable
from clearhead.inspection.steps.axes import size_of

DOCS = Path(clearhead.__file__).parents[2] / "docs" / "commands.md"

STRANGER = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(31, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.head = nn.Linear(8, 31)

    def forward(self, idx):
        x = self.table(idx)
        for block in self.blocks:
            scores = x @ x.transpose(1, 2)
            scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, float("-inf"))
            x = x + block(scores.softmax(-1) @ x)
        return self.head(x)

def build():
    print("\\x1b[31mhello")
    torch.manual_seed(0)
    return Model()

def broken():
    raise RuntimeError("no such luck")
"""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


def test_a_preset_is_traced_without_building_it(call: Caller) -> None:
    lines = call("trace", "--preset", "tutorial").out.splitlines()
    assert lines[0].split() == [
        *("module", "operation", "axes", "shape", "dtype", "bytes", "parameters", "called", "at")
    ]
    assert any(re.match(r"stack\.blocks\.1 to 3: the same, \d+ steps each", line) for line in lines)
    assert re.search(r"lm_head +linear +\(B, T, V\) +1 x 128 x 65 +float32", "\n".join(lines))
    assert "813,440 parameters" in lines[-1]
    assert (
        "262,144 entries, 1.0 MB; at 4,096 tokens 268,435,456 entries, 1.0 GB; a fused kernel never holds them"
        in lines[-1]
    )
    every = call("trace", "--preset", "tutorial", "--all").out.splitlines()
    assert len(every) > len(lines) + 50
    assert any(line.startswith("stack.blocks.3.feedforward.part.down") for line in every)


def test_what_is_documented_is_what_json_has(call: Caller) -> None:
    table = call("trace", "--preset", "translator", "--tokens", "5", "--json").json
    row = next(
        line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `trace` | `target`")
    )
    named = set(re.findall(r"`([a-z_]+)`", row)) - {"trace"}
    assert named == {*table, *table["steps"][0], *(key.lower() for key in table["scores"][0])} - {"t"}
    assert table["sizes"]["T_src"] == table["sizes"]["T"] == 5
    for step in table["steps"]:
        assert [size_of(axis, table["sizes"]) for axis in step["axes"]] == step["shape"]


def test_a_run_is_traced_with_a_text_of_its_own(call: Caller) -> None:
    assert call("train", str(write_text()), *TINY, "--out", "mine", "--data.tokenizer", "char").code == 0
    table = call("trace", "mine", "the king", "--json").json
    assert (table["target"], table["sizes"]["B"], table["sizes"]["T"]) == ("mine", 1, len("the king"))
    described = call("describe", "mine", "--json").json
    assert table["parameters"] == described["parameters"]
    assert call("trace", "mine", "--json").json["sizes"]["T"] == clearhead.load("mine").config.model.block_size
    assert call("trace", "mine", "--tokens", "7", "--json").json["sizes"]["T"] == 7
    shown = call("trace", "mine", "the king")
    assert "1 x 8 x 16" in shown.out
    assert clearhead.load("mine").trace("the king") == TraceTable.from_dict(table)


def test_a_strangers_model_needs_no_adapter(call: Caller) -> None:
    Path("other.py").write_text(STRANGER, encoding="utf-8")
    table = call("trace", "other.py:build", "--json").json
    assert table["class"] == "Model"
    assert table["call"] == "model(ids)"
    assert table["sizes"]["V"] == 31
    softmaxes = [step for step in table["steps"] if step["operation"] == "softmax"]
    assert [step["axes"] for step in softmaxes] == [["B", "T", "T"]] * 3
    source = STRANGER.splitlines()
    assert all("softmax" in source[step["line"] - 1] for step in softmaxes)
    assert {step["file"] for step in table["steps"]} == {str(Path("other.py").resolve())}
    assert table["steps"][-1]["axes"] == ["B", "T", "V"]
    sizes = table["sizes"]
    assert table["scores"][0]["entries"] == 3 * sizes["B"] * sizes["T"] ** 2
    assert table["fused"] == 0


def test_every_form_of_file(call: Caller) -> None:
    files = ("--report", "t.html", "--csv", "t.csv", "--svg", "t.svg")
    shown = call("trace", "--preset", "tutorial", "--tokens", "4", *files)
    assert shown.code == 0
    steps = call("trace", "--preset", "tutorial", "--tokens", "4", "--json").json["steps"]
    page = Page(Path("t.html").read_text(encoding="utf-8"))
    assert "scaled_dot_product_attention" in page.text
    with Path("t.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["module"] for row in rows] == [step["module"] for step in steps]
    assert rows[0].keys() == {"module", "operation", "axes", "shape", "dtype", "bytes", "parameters", "file", "line"}
    assert Path("t.svg").read_text(encoding="utf-8").startswith("<svg ")


REFUSED = [
    (["trace", "run", "--preset", "tutorial"], 2, "a target or a preset"),
    (["trace", "--preset", "tutorail"], 2, "did you mean 'tutorial'?"),
    (["trace", "--preset", "tutorial", "--tokens", "129"], 2, "--tokens must be between 1 and the model's block_size"),
    (["trace", "--preset", "tutorial", "--tokens", "0"], 2, "--tokens must be between 1"),
    (["trace", "--preset", "tutorial", "--tokens", "x"], 2, "--tokens takes a whole number, not 'x'"),
    (["trace", "other.py:build", "To be"], 2, "runs alone"),
    (["trace", "other.py:build", "--tokens", "4"], 2, "--tokens is for runs and presets"),
    (["trace", "other.py:build", "--set", "a=1"], 2, "--set is for hf:NAME only"),
    (["trace", "other.py:biuld"], 3, "there is no 'biuld'"),
    (["trace", "other.py:broken"], 3, "no such luck"),
    (["trace", "To be"], 3, "there is no run here yet"),
    (["trace", "runs/none"], 2, "runs/none"),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("argv", "code", "sentence"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_mistake_is_one_sentence(argv: list[str], code: int, sentence: str, call: Caller) -> None:
    Path("other.py").write_text(STRANGER, encoding="utf-8")
    done = call(*argv)
    assert done.code == code
    assert sentence in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""
    assert call(*argv, "--json").json["exit_code"] == code


def test_no_compiler_and_no_library_of_strangers_is_loaded() -> None:
    """Torch's compilers take seconds, and so does the meta device, which loads them."""
    import subprocess

    program = (
        "import sys\n"
        "from clearhead import cli\n"
        "for preset in ('tutorial', 'small', 'llama', 'translator', 'masked', 'ngram-tables', 'bigram'):\n"
        "    assert cli.run(['trace', '--preset', preset, '--tokens', '5']) == 0\n"
        "needless = {'torch._dynamo', 'sympy', 'rich', 'transformers'} & set(sys.modules)\n"
        "assert not needless, needless\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_a_table_is_the_same_after_json(call: Caller) -> None:
    document = call("trace", "--preset", "bigram", "--json").json
    assert json.loads(json.dumps(TraceTable.from_dict(document).as_dict())) == document
