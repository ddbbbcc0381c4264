"""The studio in a real Chromium: what it shows is what the library says, of a language model and of a translator."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, expect
from real_browser import TIMEOUT, Opened, Scheme, opened
from run_folders import write_run
from running_server import running_app

from clearhead import inspection
from clearhead.config import SamplingConfig
from clearhead.config.serving import ServerConfig
from clearhead.inference.sampling import filter_logits
from clearhead.inspection.attention.alignment import alignment
from clearhead.inspection.heads.ablation import without_heads
from clearhead.models import EncoderDecoder
from clearhead.server.studio.app import create_studio
from clearhead.workflows import attend, predict, translate
from clearhead.workflows.prompts import read_prompt
from clearhead.workflows.runs.folder import RunFolder

pytestmark = pytest.mark.browser

TOKEN = "a-token-that-nobody-guesses"
CODE = """
from torch import nn

def build():
    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
"""
HOSTILE = "<img src=x onerror=alert(1)>"
SCREENS = ("runs", "architecture", "xray", "attention", "next", "write", "doctor")
expect.set_options(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studio")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    for name, objective in {
        "translator": "seq2seq",
        "encoder": "masked",
        HOSTILE: "causal",
        "writer": "causal",
    }.items():
        write_log(write_run(Path("runs") / name, objective), 30)
    damaged = write_run(Path("runs/damaged"))
    (damaged.folder / "clearhead.toml").write_text("not [TOML", encoding="utf-8")
    Path("model.py").write_text(CODE, encoding="utf-8")
    config = ServerConfig(device="cpu", engine="eager", token=TOKEN)
    with running_app(create_studio(config, code="model.py:build")) as url:
        yield f"{url}/"
    patch.undo()


def write_log(run: RunFolder, steps: int) -> None:
    start = {"kind": "start", "step": 0, "steps": steps, "process": 1, "floor": 1.5}
    records: list[dict[str, object]] = [start]
    for step in range(1, steps + 1):
        step_record: dict[str, object] = {
            "kind": "step",
            "step": step,
            "loss": 4 - step / 20,
            "tokens": 64,
            "seconds": 0.1,
        }
        records.append({**step_record, "learning_rate": 0.01, "gradient_norm": 1.0})
    records.append({"kind": "evaluation", "step": steps, "loss": 2.6})
    records.append({"kind": "sample", "step": steps, "text": "once upon a time there"})
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def view(address: str, **state: object) -> str:
    return f"{address}#token={TOKEN}&" + "&".join(f"{name}={value}" for name, value in state.items())


@pytest.fixture
def show(chromium: Browser, address: str) -> Iterator[Any]:
    """Opens a view, and holds at the end that nothing went wrong in it."""
    contexts = []

    def opened_at(*, scheme: Scheme = "light", width: int = 1280, **state: object) -> Opened:
        context = opened(chromium, view(address, **state), scheme=scheme, width=width)
        shown = context.__enter__()
        shown.requests[0] = address
        contexts.append((context, shown))
        expect(shown.page.locator("#summary")).not_to_contain_text("Loading")
        return shown

    yield opened_at
    for context, shown in contexts:
        try:
            shown.assert_quiet()
        finally:
            context.__exit__(None, None, None)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360)])
@pytest.mark.parametrize("screen", SCREENS)
def test_every_screen_is_accessible_quiet_and_no_wider_than_the_window(
    show: Any, screen: str, scheme: Scheme, width: int
) -> None:
    shown = show(screen=screen, run="writer", text="once upon", scheme=scheme, width=width)
    expect(shown.page.locator(f"#screen-{screen}")).to_be_visible()
    if screen in ("architecture", "doctor"):
        frame = shown.page.frame_locator(f"#screen-{screen} iframe")
        expect(frame.locator("h1")).to_contain_text("writer", timeout=3 * TIMEOUT)
    if screen == "xray":
        expect(shown.page.locator(".activation h2")).to_have_text("stack.input")
    if screen == "attention":
        expect(shown.page.locator(".wall button")).to_have_count(4)
    if screen == "next":
        expect(shown.page.locator(".odds li").first).to_be_visible()
    assert "token" not in shown.run("location.hash")
    shown.assert_accessible()
    assert shown.run("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("run", ["translator", "encoder", HOSTILE, "damaged"])
def test_every_screen_of_every_kind_of_run_is_quiet(show: Any, run: str) -> None:
    shown = show(run=run, screen="runs")
    shown.page.locator("#run").select_option(run)
    for screen in SCREENS:
        shown.page.locator(f"[data-screen={screen}]").click()
        expect(shown.page.locator(f"[data-screen={screen}]")).to_have_attribute("aria-current", "page")
    expect(shown.page.locator("#summary")).to_contain_text(run)
    if run != "damaged":
        expect(shown.page.frame_locator("#screen-doctor iframe").locator("h1")).to_be_visible(timeout=3 * TIMEOUT)


@pytest.mark.parametrize(("run", "text"), [("writer", "once upon"), ("translator", "the old dog")])
def test_a_weight_on_the_map_is_the_librarys(show: Any, run: str, text: str) -> None:
    expected = attend(run, text)
    query, key = 1, 0
    shown = show(run=run, screen="attention", text=text, layer=1, head=1, query=query, key=key)
    weight = shown.page.locator("#weight")
    expect(weight).to_be_visible()
    assert float(weight.text_content() or "") == pytest.approx(float(expected.weights[1, 1, query, key]), abs=1e-6)
    token = shown.page.locator("#screen-attention .strip .token").nth(key)
    assert token.get_attribute("title") == f"{expected.weights[1, 1, query, key]:.4f}"
    assert shown.page.locator("[role=status]").filter(has_text="sharpest").count() == 1


@pytest.mark.parametrize(("run", "text"), [("writer", "once upon"), ("translator", "the old dog")])
def test_a_number_of_an_activation_is_the_librarys(show: Any, run: str, text: str) -> None:
    prompt = read_prompt(run, text)
    with torch.no_grad(), inspection.record(prompt.model) as trace:
        prompt.model(*prompt.inputs)
    stack = "stack" if run == "writer" else "decoder"
    name = f"{stack}.blocks.0.self_attention.part.mixed"
    shown = show(run=run, screen="xray", text=text, activation=name, matrix=1, row=0, column=2)
    number = shown.page.locator(".activation .number b")
    expect(number).to_be_visible()
    assert float(number.text_content() or "") == pytest.approx(float(trace[name][0, 1, 0, 2]), rel=1e-5)
    shown.page.locator(".activation canvas").focus()
    shown.page.keyboard.press("ArrowRight")
    assert float(number.text_content() or "") == pytest.approx(float(trace[name][0, 1, 0, 3]), rel=1e-5)
    assert "column=3" in shown.run("location.hash")
    ids = [side[0].tolist() for side in prompt.inputs]
    assert shown.page.locator(".ids .token small").all_text_contents() == [str(id) for row in ids for id in row]


def test_a_step_of_the_table_shows_its_activation(show: Any) -> None:
    shown = show(run="writer", screen="xray", text="once")
    name = "stack.blocks.0.feedforward.part.hidden"
    shown.page.locator(f".steps [data-name='{name}']").click()
    expect(shown.page.locator(".activation h2")).to_have_text(name)
    prompt = read_prompt("writer", "once")
    with torch.no_grad(), inspection.record(prompt.model, name) as trace:
        prompt.model(*prompt.inputs)
    bounds = shown.page.locator(".activation .heat-map .soft").text_content().split()
    assert [float(bounds[1]), float(bounds[3])] == pytest.approx([trace[name].min(), trace[name].max()], rel=1e-5)


@pytest.mark.parametrize("which", ["mean", "head"])
def test_the_ribbons_are_the_librarys_alignment(show: Any, which: str) -> None:
    prompt = read_prompt("translator", "the old dog", "the dog")
    assert isinstance(prompt.model, EncoderDecoder)
    (source, target), end = (ids[0].tolist() for ids in prompt.inputs), prompt.tokenizer.end_of_document
    assert end is not None
    expected = alignment(prompt.model, source, [*target[1:], end], end=end, layer=1).numpy()
    if which == "head":
        expected = attend("translator", "the old dog", target="the dog").weights[1, 0]
    state = {
        "run": "translator",
        "screen": "attention",
        "text": "the old dog",
        "target": "the dog",
        "layer": 1,
        "head": 0,
    }
    shown = show(**state, ribbons=which, scheme="dark")
    expect(shown.page.locator(".ribbons svg")).to_be_visible()
    drawn = shown.run("[...document.querySelectorAll('.ribbon')].map(({ dataset }) => ({ ...dataset }))")
    assert len(drawn) == (expected >= 0.02).sum()
    for ribbon in drawn:
        weight = expected[int(ribbon["query"]), int(ribbon["key"])]
        assert float(ribbon["weight"]) == pytest.approx(float(weight), abs=1e-4)
    texts_shown = shown.page.locator(".ribbons .word").all_text_contents()
    labels = [*(prompt.source_labels or ()), *prompt.labels[1:], "⟨end⟩"]
    assert texts_shown == [label.replace(" ", "␣") for label in labels]
    shown.assert_accessible()


@pytest.mark.parametrize(("alpha", "scheme", "width"), [(0, "light", 1280), (1.5, "dark", 360)])
def test_the_slider_ranks_as_a_search_does(show: Any, alpha: float, scheme: Scheme, width: int) -> None:
    options = {"beam_size": 4, "n_best": 4, "length_penalty": alpha, "engine": "eager"}
    [expected] = translate("translator", "the old dog", options)
    shown = show(run="translator", screen="write", text="the old dog", beams=4, scheme=scheme, width=width)
    expect(shown.page.locator(".n-best li")).to_have_count(len(expected))
    shown.page.locator("[name=alpha]").fill(str(alpha))
    scores = shown.page.locator(".n-best b").all_text_contents()
    assert [float(score) for score in scores] == pytest.approx([t.score for t in expected], abs=1e-6)
    texts = shown.page.locator(".n-best .link").all_text_contents()
    assert texts == [translation.text or "(empty)" for translation in expected]
    assert f"alpha={alpha}" in shown.run("location.hash")
    shown.page.locator(".n-best .link").last.click()
    expect(shown.page.locator(".n-best [aria-pressed=true]")).to_have_text(expected[-1].text or "(empty)")
    expect(shown.page.locator(".beams .node.on").first).to_be_attached()
    shown.assert_accessible()
    assert shown.run("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_map_is_walked_over_by_keyboard_alone(show: Any) -> None:
    shown = show(run="writer", screen="attention", text="once upon", layer=0, head=0)
    large = shown.page.locator("#screen-attention canvas.map")
    expect(large).to_be_visible()
    large.focus()
    for key in ("ArrowUp", "ArrowRight", "ArrowRight", "ArrowLeft"):
        shown.page.keyboard.press(key)
    expect(shown.page.locator("#weight")).to_be_visible()
    assert "query=7" in shown.run("location.hash")
    assert "key=1" in shown.run("location.hash")


def test_odds_and_surprisal_are_the_librarys(show: Any) -> None:
    expected = predict("writer", "once upon", top_k=20)
    shown = show(run="writer", screen="next", text="once upon")
    rows = shown.page.locator(".odds li")
    expect(rows).to_have_count(20)
    best = expected.positions[-1].top
    shares = [float(re.sub("[^0-9.e-]", "", text)) for text in rows.locator("b").all_text_contents()]
    assert shares[:5] == pytest.approx([100 * entry.probability for entry in best[:5]], abs=0.01)
    marks = shown.page.locator("#screen-next .strip").first.locator("button").all()
    for mark, position in zip(marks, expected.positions, strict=True):
        assert mark.get_attribute("title") == ("" if position.bits is None else f"{position.bits:.2f} bits")


def test_a_head_is_switched_off_on_screen_as_by_intervene(show: Any) -> None:
    shown = show(run="writer", screen="attention", text="once upon", layer=1, head=0)
    shown.page.get_by_role("button", name="Switch this head off").click()
    expect(shown.page.locator(".wall .off")).to_have_count(1)
    shown.page.locator("[data-screen=next]").click()
    prompt = read_prompt("writer", "once upon")
    with torch.no_grad(), inspection.intervene(prompt.model, without_heads(prompt.model, [("self", 1, 0)])):
        shares = prompt.model(*prompt.inputs)[0, -1].softmax(-1)
    first = shown.page.locator(".odds li").first
    expect(first.locator("small")).to_contain_text("before")
    token = int(first.get_attribute("data-id") or "")
    assert token == int(shares.argmax())
    assert float((first.locator("b").text_content() or "").partition(" ")[0]) == pytest.approx(
        100 * float(shares[token]), abs=0.01
    )


def test_the_sliders_are_the_librarys_sampling(show: Any) -> None:
    shown = show(run="writer", screen="runs")
    generator = torch.Generator().manual_seed(0)
    rows, settings, expected = [], [], []
    for _ in range(1000):
        logits = torch.randn(60, generator=generator) * 4
        draw = torch.rand(4, generator=generator).tolist()
        setting = {
            "temperature": round(2 * draw[0], 2),
            "topK": int(70 * draw[1]) or None,
            "topP": round(0.01 + 0.99 * draw[2], 3),
            "minP": round(draw[3] / 3, 3),
        }
        config = SamplingConfig(
            temperature=setting["temperature"], top_k=setting["topK"], top_p=setting["topP"], min_p=setting["minP"]
        )
        rows.append(logits.tolist())
        settings.append(setting)
        expected.append(filter_logits(logits[None], config)[0].double().softmax(-1))
    answers = shown.page.evaluate(
        """async ([rows, settings]) => {
          const { probabilities } = await import("/studio/page/sampling.js");
          return rows.map((row, index) => [...probabilities(Float32Array.from(row), settings[index])]);
        }""",
        [rows, settings],
    )
    difference = (torch.tensor(answers, dtype=torch.float64) - torch.stack(expected)).abs().max()
    assert difference < 1e-6, f"the largest difference is {difference}"


def test_an_alternative_is_gone_on_from_and_back(show: Any) -> None:
    shown = show(run="writer", screen="next", text="once")
    shown.page.locator(".odds li .link").first.click()
    expect(shown.page.locator(".tree .chip")).to_have_count(1)
    assert len(shown.page.locator("#prompt [name=text]").input_value()) == 5
    shown.page.locator(".tree .chip").click()
    expect(shown.page.locator("#prompt [name=text]")).to_have_value("once")
    expect(shown.page.locator(".tree .chip")).to_have_count(0)


def test_why_a_token_adds_up_to_its_logit(show: Any) -> None:
    shown = show(run="writer", screen="next", text="once upon")
    first = shown.page.locator(".odds li").first
    first.get_by_role("button", name="Why?").click()
    marks = shown.page.locator(".why .token")
    expect(marks).to_have_count(len("once upon"))
    prompt = read_prompt("writer", "once upon")
    target = int(first.get_attribute("data-id") or "")
    scores = inspection.attribute(prompt.model, prompt.inputs[0], target=target).scores
    assert [float(mark.get_attribute("title") or "") for mark in marks.all()] == pytest.approx(scores, abs=1e-3)


def test_texts_are_written_with_the_run_that_is_shown(show: Any) -> None:
    shown = show(run="writer", screen="write")
    shown.page.locator("#write [name=prompt]").fill("once")
    shown.page.locator("#write [name=max_tokens]").fill("5")
    shown.page.locator("#write button[type=submit]").click()
    expect(shown.page.locator("#write .end")).to_contain_text("after")


def test_without_the_token_nothing_is_told(chromium: Browser, address: str) -> None:
    with opened(chromium, address) as shown:
        expect(shown.page.locator("#summary")).to_contain_text("token")
        shown.page.locator("#token").fill(TOKEN)
        shown.page.locator("#unlock").click()
        expect(shown.page.locator("#summary")).to_contain_text("parameters")
        assert all("401" in error for error in shown.errors)


@pytest.mark.parametrize("text", [HOSTILE, "</script><script>alert(1)</script>", "\u202eabc", "a\x00b", "x" * 5000])
def test_a_hostile_text_is_shown_or_refused_and_never_run(show: Any, text: str) -> None:
    shown = show(run="writer", screen="next")
    shown.page.locator("#prompt [name=text]").fill(text)
    shown.page.locator("#prompt button[type=submit]").click()
    shown.page.wait_for_load_state("networkidle")
    shown.errors[:] = [error for error in shown.errors if "400" not in error]
    assert shown.page.locator("img").count() == 0


def test_the_model_of_the_command_line_is_examined_beside_the_run(show: Any) -> None:
    shown = show(screen="doctor", run="writer", code="1")
    heading = shown.page.frame_locator("#screen-doctor iframe").locator("h1")
    expect(heading).to_have_text("model.py:build", timeout=3 * TIMEOUT)
    shown.page.get_by_role("button", name="writer").click()
    expect(heading).to_contain_text("runs/writer", timeout=3 * TIMEOUT)
    assert "code" not in shown.run("location.hash")
    shown.page.get_by_role("button", name="model.py:build").click()
    expect(heading).to_have_text("model.py:build", timeout=3 * TIMEOUT)
    shown.assert_accessible()
    shown.assert_quiet()
