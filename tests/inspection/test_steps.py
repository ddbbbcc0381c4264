"""Traces of anybody's modules: what is a step, what is told once, and what no text can break."""

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from page_reader import Page
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.doctor.probes.tracing import recorded_ops
from clearhead.inspection import TraceStep, TraceTable, trace_steps
from clearhead.inspection.steps.axes import TwoPasses, size_of
from clearhead.inspection.steps.folding import Repeats, folded
from clearhead.inspection.steps.lines import table_lines
from clearhead.models import DecoderLM
from clearhead.pages import CONTROLS

HERE = str(Path(__file__))
HOSTILE = (
    "</script><script>alert(1)</script>",
    "\x1b]0;owned\x07\x1b[31m",
    "a\nb\r\u2028c",
    "\u202egnp",
    '"><img>',
)
FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-2", "@SUM(A1)", "\t=1")


class Bag(nn.Module):
    """Not a Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(17, 6)
        self.map = nn.Linear(6, 4)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.table(ids)  # (B, T, 6)
        first, second = self.map(x).chunk(2, dim=-1)
        return first.softmax(-1), second.transpose(0, 1)


def small_model() -> DecoderLM:
    config = ModelConfig(vocab_size=11, block_size=16, n_layers=3, n_heads=2, d_model=8, d_ff=20)
    return DecoderLM(config).eval()


def test_steps_of_any_module() -> None:
    table = trace_steps(Bag(), torch.zeros(3, 5, dtype=torch.int64))
    steps = {step.operation: step for step in table.steps}
    assert [step.operation for step in table.steps] == [
        *("embedding", "linear", "chunk 1/2", "chunk 2/2", "softmax", "transpose")
    ]
    assert (steps["embedding"].module, steps["softmax"].module) == ("table", "")
    assert steps["embedding"].axes == ("B", "T", "6")
    assert (steps["embedding"].bytes, steps["chunk 1/2"].bytes, steps["transpose"].bytes) == (3 * 5 * 6 * 4, 0, 0)
    assert (steps["embedding"].parameters, steps["linear"].parameters) == (17 * 6, 6 * 4 + 4)
    assert table.parameters == 17 * 6 + 6 * 4 + 4
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    for step in table.steps:
        assert step.file == HERE
        assert step.line is not None
        assert any(part in lines[step.line - 1] for part in ("self.table(ids)", "chunk", "transpose"))
    assert not table.score_steps
    assert table.verdict.endswith("No attention scores were seen.")


def test_nothing_is_kept_of_a_pass() -> None:
    model = small_model()
    with torch.no_grad(), recorded_ops(shapes_only=True) as ops:
        model(torch.zeros(1, 4, dtype=torch.int64))
    assert ops.calls
    kept = [tensor for call in ops.calls for tensor in (*call.inputs, *call.outputs)]
    assert all(tensor.is_meta for tensor in kept)
    held = [value for call in ops.calls for value in (*call.options["args"], *call.options["kwargs"].values())]
    assert not [value for value in held if isinstance(value, (Tensor, list, tuple))]


def test_the_output_is_the_same_and_no_hook_stays() -> None:
    model, ids, outputs = small_model(), torch.arange(6)[None], list[Tensor]()
    before = model(ids)
    with torch.no_grad(), recorded_ops(shapes_only=True):
        outputs.append(model(ids))
    assert torch.equal(before, outputs[0])
    trace_steps(model, ids)
    assert torch.nn.modules.module._global_forward_hooks == {}
    with pytest.raises(ValueError, match="whole numbers"):
        trace_steps(model, ids.float())
    assert torch.nn.modules.module._global_forward_hooks == {}
    assert torch.equal(before, model(ids))


def test_blocks_that_are_the_same_are_told_once() -> None:
    table = trace_steps(small_model(), torch.zeros(1, 4, dtype=torch.int64))
    entries = list(folded(table.steps))
    [repeats] = [entry for entry in entries if isinstance(entry, Repeats)]
    assert (repeats.stack, repeats.first, repeats.last) == ("stack.blocks", 1, 2)
    assert sum(isinstance(entry, TraceStep) for entry in entries) + 2 * repeats.steps == len(table.steps)
    assert repeats.sentence == f"stack.blocks.1 to 2: the same, {repeats.steps} steps each"


def test_a_block_that_differs_is_told() -> None:
    model = small_model()
    model.stack.blocks[1].feedforward.part.up = nn.Linear(8, 20, bias=True)  # type: ignore[union-attr]
    table = trace_steps(model, torch.zeros(1, 4, dtype=torch.int64))
    assert not [entry for entry in folded(table.steps) if isinstance(entry, Repeats)]


def test_a_model_that_is_not_what_its_config_says_is_traced_without_its_twin() -> None:
    model = small_model()
    model.stack.blocks[1].feedforward.part.down = nn.Sequential(nn.Linear(20, 8), nn.Tanh())  # type: ignore[union-attr]
    table = trace_steps(model, torch.zeros(3, 5, dtype=torch.int64))
    assert any(step.operation == "tanh" for step in table.steps)
    assert table.steps[0].axes == ("B", "T", "D")


def test_what_the_scores_cost() -> None:
    table = trace_steps(small_model(), torch.zeros(2, 5, dtype=torch.int64))
    now, later = table.scores
    assert (now.T, now.entries, now.bytes) == (5, 3 * 2 * 2 * 5 * 5, 3 * 2 * 2 * 5 * 5 * 4)
    assert (later.T, later.entries) == (4096, 3 * 2 * 2 * 4096**2)
    assert "a fused kernel never holds them" in table.verdict


@pytest.mark.parametrize(
    ("axis", "size"), [("B", 3), ("2*H", 8), ("H/H_kv*T", 10), ("T+2", 7), ("2*T-1", 9), ("K-R", 2), ("7", 7)]
)
def test_axes_are_read_again(axis: str, size: int) -> None:
    assert size_of(axis, {"B": 3, "T": 5, "H": 4, "H_kv": 2, "K": 6, "R": 4}) == size


def test_an_axis_that_is_no_size_is_refused() -> None:
    with pytest.raises(ValueError, match="5/2"):
        size_of("T/2", {"T": 5})


def test_two_passes_name_what_differs() -> None:
    names = TwoPasses({"B": 3, "T": 13}, {"B": 7, "T": 11}, 97)
    sizes = {(3, 7): "B", (13, 11): "T", (39, 77): "B*T", (97, 97): "V", (12, 28): "4*B", (14, 12): "T+1"}
    sizes |= {(25, 21): "2*T-1", (32, 32): "32", (16, 11): "16", (13, 13): "13"}
    assert {pair: names.read(*pair) for pair in sizes} == sizes


def hostile_table(text: str) -> TraceTable:
    step = TraceStep(f"h.0.{text}", text, ("B", text), (1, 2), "float32", 8, 3, f"/tmp/{text}.py", 7)
    return TraceTable(text, (step, step), {"B": 1}, 3, text, text)


@pytest.mark.parametrize("text", [*HOSTILE, *FORMULAS])
def test_no_text_breaks_a_terminal_a_page_a_picture_or_a_spreadsheet(text: str) -> None:
    assert_harmless(text)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from([*map(chr, CONTROLS), *"<>&\"'/=+-@.,\\aä日\u0301\u200d🙂"]) | st.characters()))
def test_nor_does_any_other(text: str) -> None:
    assert_harmless(text)


def assert_harmless(text: str) -> None:
    table = hostile_table(text)
    for line, _ in [*table_lines(table), *table_lines(table, width=60)]:
        assert not set(line) & {chr(code) for code in CONTROLS}
    page = Page(table.html())
    assert not {"script", "img"} & {tag for tag, _ in page.elements}
    assert "<script" not in table.svg()
    assert "<img" not in table.svg()
    cells = [cell for row in csv.reader(io.StringIO(table.csv())) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert TraceTable.from_dict(json.loads(json.dumps(table.as_dict()))) == table


def test_lines_fit_a_terminal() -> None:
    table = trace_steps(small_model(), torch.zeros(1, 4, dtype=torch.int64))
    for width in (60, 80, 120, 200):
        assert all(len(line) <= width for line, _ in table_lines(table, width=width))
    assert all(
        step.module in line
        for step, (line, _) in zip(table.steps, list(table_lines(table, fold=False))[1:], strict=True)
    )
