"""The page of an architecture in a real Chromium: mouse, keyboard, screen reader, numbers."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser
from real_browser import Opened, Scheme, opened

from clearhead.config import PRESETS, ModelConfig, RunConfig
from clearhead.inspection.architecture import ArchitectureReport
from clearhead.inspection.architecture.drawing import edge_text
from clearhead.inspection.architecture.equations import equations
from clearhead.inspection.architecture.sources import sources_of

pytestmark = pytest.mark.browser

CONFIGS = {
    "decoder": RunConfig.read(PRESETS["tutorial"].options, {}).model,
    "modern": RunConfig.read(PRESETS["llama"].options, {}).model,
    "encoder": ModelConfig.read({"architecture": "encoder", "n_token_types": 2, "head_transform": True, "n_layers": 1}),
    "pair": RunConfig.read(PRESETS["vaswani2017"].options, {}).model,
    "biased pair": ModelConfig.read({"architecture": "encoder_decoder", "positions": "relative", "n_layers": 2}),
    "parallel": ModelConfig.read(
        {"parallel_residual": True, "positions": "alibi", "embedding_ngrams": 2, "logit_ngrams": 2}
    ),
    "bigram": ModelConfig.read({"architecture": "bigram"}),
}
BOTH = [name for name, config in CONFIGS.items() if name not in ("parallel", "bigram")]
AT_REST = 1200  # milliseconds, after which a moved norm stands still
Written = dict[str, tuple[ArchitectureReport, Path]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("pages")
    pages = {}
    for name, config in CONFIGS.items():
        report, path = ArchitectureReport(config, name), folder / f"{name}.html"
        path.write_text(report.html(), encoding="utf-8")
        pages[name] = (report, path)
    return pages


def node(shown: Opened, name: str) -> str:
    return f'.node[data-name="{name}"]'


def height_of(shown: Opened, name: str) -> float:
    box = shown.page.locator(node(shown, name)).bounding_box()
    assert box is not None
    return box["y"] + box["height"] / 2


def focused(shown: Opened) -> str:
    return str(shown.run("document.activeElement.dataset.name ?? ''"))


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [
        ("decoder", "light", 1280),
        ("modern", "dark", 390),
        ("encoder", "dark", 1280),
        ("biased pair", "light", 390),
        ("parallel", "light", 1280),
        ("bigram", "dark", 1280),
    ],
)
def test_axe_is_content_and_nothing_is_requested(
    chromium: Browser, written: Written, name: str, scheme: Scheme, width: int
) -> None:
    with opened(chromium, written[name][1], scheme=scheme, width=width, calm=True) as shown:
        shown.page.locator(".node").nth(1).click()
        shown.page.check("#shapes")
        shown.page.check("[name=overlay][value=flops]", force=True)
        shown.page.locator("#list > summary").click()
        shown.assert_accessible()
        shown.assert_quiet()
        assert shown.run("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"


@pytest.mark.parametrize("name", CONFIGS)
def test_each_box_shows_its_equation_its_numbers_and_its_source(chromium: Browser, written: Written, name: str) -> None:
    report, path = written[name]
    graph, _ = next(iter(report.variants.values()))
    with opened(chromium, path, calm=True) as shown:
        for label, entry in graph.nodes.items():
            shown.page.locator(node(shown, label)).dispatch_event("click")
            panel = shown.page.locator("#panel")
            text = panel.inner_text()
            assert entry.about in text
            measures = report.measures[label]
            assert not measures.parameters or f"{measures.parameters:,} parameters" in text
            assert not measures.flops or f"{measures.flops:,} FLOPs" in text
            numbers = ", ".join(f"{length:,}" for length in graph.shape(label))
            assert f"({', '.join(entry.axes)}) = ({numbers})" in text
            drawn = shown.run(
                "[...document.querySelectorAll('#panel math')].map((math) => math.getBoundingClientRect().height)"
            )
            assert len(drawn) == len(equations(graph, entry))
            assert all(height > 10 for height in drawn)
            codes = [source.code for source in sources_of(graph, report.model, entry)]
            assert shown.run("[...panel.querySelectorAll('pre')].map((pre) => pre.textContent)") == codes
            assert shown.page.locator(".node[aria-pressed=true]").count() == 1
        shown.assert_quiet()


@pytest.mark.parametrize("name", CONFIGS)
def test_each_arrow_says_what_it_carries(chromium: Browser, written: Written, name: str) -> None:
    report, path = written[name]
    graph, _ = next(iter(report.variants.values()))
    with opened(chromium, path, calm=True) as shown:
        pill = shown.page.locator("#pill")
        for edge in graph.edges:
            arrow = shown.page.locator(f'.edge[data-name="{edge.name}"]').first  # this model's; the sibling's is behind
            assert arrow.get_attribute("aria-label") == edge_text(graph, edge)
            arrow.evaluate("(edge) => edge.focus()")
            assert pill.is_visible()
            assert pill.inner_text() == edge_text(graph, edge)
        shown.run("document.activeElement.blur()")
        assert pill.is_hidden()
        shown.assert_quiet()


def test_the_mouse_brings_the_shape_of_an_arrow(chromium: Browser, written: Written) -> None:
    with opened(chromium, written["decoder"][1], calm=True) as shown:
        arrow = shown.page.locator(
            '.edge[data-name="stack.blocks.0.self_attention.part.value>stack.blocks.0.self_attention.part.mixed"]'
        )
        arrow.scroll_into_view_if_needed()
        # A scroll hides the pill: its event comes with the next frame, which a busy machine draws late.
        shown.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        box = arrow.locator(".line").bounding_box()
        assert box is not None
        shown.page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2)
        pill = shown.page.locator("#pill")
        pill.wait_for(state="visible")
        assert "(B, H, T, K) = (1, 4, 128, 32), float32, 64 kB" in pill.inner_text()
        shown.page.mouse.move(2, 2)
        pill.wait_for(state="hidden")


@pytest.mark.parametrize(("name", "calm"), [("decoder", False), *((name, True) for name in BOTH)])
def test_the_norm_moves_across_the_sum(chromium: Browser, written: Written, name: str, calm: bool) -> None:
    report, path = written[name]
    graph, _ = report.variants["pre"]
    sublayers = [sublayer for column in graph.columns for sublayer in column.sublayers]
    with opened(chromium, path, calm=calm) as shown:
        for variant in ("pre", "post", "pre"):
            shown.page.check(f"[name=variant][value={variant}]", force=True)
            if not calm:
                shown.page.wait_for_timeout(AT_REST)
            for sublayer in sublayers:
                norm, part, add = (height_of(shown, part) for part in (sublayer.norm, sublayer.card, sublayer.add))
                assert part < add
                assert (norm < part) if variant == "pre" else (norm > add)
            final = f"{graph.columns[-1].stack}.norm"
            assert shown.page.locator(node(shown, final)).is_visible() == (variant == "pre")
            note = shown.page.locator(f".note[data-variant={variant}]")
            assert note.is_visible()
        shown.assert_quiet()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_keyboard_walks_from_the_ids_to_the_logits(chromium: Browser, written: Written, name: str) -> None:
    report, path = written[name]
    graph, _ = next(iter(report.variants.values()))
    with opened(chromium, path, calm=True) as shown:
        keyboard, walked = shown.page.keyboard, list[str]()
        for _ in range(12):
            keyboard.press("Tab")
            if shown.run("Boolean(document.activeElement.closest('#picture'))"):
                break
        while focused(shown) != "logits" and len(walked) < 4 * len(graph.nodes):
            walked.append(focused(shown))
            strokes = "getComputedStyle(document.activeElement.querySelector('rect, circle, .line')).strokeWidth"
            assert float(shown.run(strokes).removesuffix("px")) >= 3.5, "the focus can be seen"
            keyboard.press("ArrowDown")
        assert focused(shown) == "logits", walked[-3:]
        chain = [step for column in graph.columns[-1:] for step in (*column.before, *column.after)]
        assert set(chain) <= {*walked, "logits"}
        for _ in range(4 * len(graph.nodes)):
            if focused(shown) in ("ids", "source_ids"):
                break
            keyboard.press("ArrowUp")
        assert focused(shown) in ("ids", "source_ids")
        keyboard.press("End")
        keyboard.press("Enter")
        assert "Logits" in shown.page.locator("#panel .name").inner_text()
        keyboard.press("Escape")
        assert shown.page.locator("#panel .hint").is_visible()
        keyboard.press("Tab")
        assert not shown.run("Boolean(document.activeElement.closest('#picture'))"), "the picture is one stop"
        shown.assert_quiet()


def test_the_keyboard_goes_sideways_among_the_projections(chromium: Browser, written: Written) -> None:
    with opened(chromium, written["decoder"][1], calm=True) as shown:
        part = "stack.blocks.0.self_attention.part"
        shown.page.locator(node(shown, f"{part}.query")).click()
        for step in ("key", "value"):
            shown.page.keyboard.press("ArrowRight")
            assert focused(shown) == f"{part}.{step}"
        shown.page.keyboard.press("ArrowLeft")
        shown.page.keyboard.press("ArrowDown")
        assert focused(shown) == f"{part}.key>{part}.scores"


@pytest.mark.parametrize("name", ["decoder", "biased pair", "parallel"])
@pytest.mark.parametrize("overlay", ["parameters", "flops", "n_bytes", "activation"])
def test_an_overlay_shows_the_librarys_numbers(chromium: Browser, written: Written, name: str, overlay: str) -> None:
    report, path = written[name]
    entries = report.data()["overlays"]
    assert isinstance(entries, dict)
    with opened(chromium, path, calm=True) as shown:
        shown.page.check(f"[name=overlay][value={overlay}]", force=True)
        for label, entry in next(iter(report.variants.values()))[0].nodes.items():
            if entry.kind in ("dropout", "add", "plus"):
                continue
            share, number = entries[overlay].get(label, (0, ""))
            box = shown.page.locator(node(shown, label))
            assert box.locator(".number").text_content() == number, label
            width = box.locator(".bar").get_attribute("width")
            assert (float(width or 0) > 0) == bool(share), label
        shown.page.check("[name=overlay][value='']", force=True)
        assert shown.page.locator(".number").locator("visible=true").count() == 0


@pytest.mark.parametrize("name", CONFIGS)
def test_without_scripts_the_list_has_everything(chromium: Browser, written: Written, name: str) -> None:
    report, path = written[name]
    with opened(chromium, path, scripts=False) as shown:
        text = shown.page.locator("#list").inner_text()
        for graph, _ in report.variants.values():
            for label, entry in graph.nodes.items():
                assert entry.about in text
                parameters = report.measures[label].parameters
                assert not parameters or f"{parameters:,} parameters" in text
        assert shown.page.locator(".controls").is_hidden()
        assert shown.page.locator("#picture").is_visible()


def test_a_reader_who_prefers_calm_gets_it(chromium: Browser, written: Written) -> None:
    durations = (
        "[...document.querySelectorAll('[data-moves], .edges')].map((e) => getComputedStyle(e).transitionDuration)"
    )
    for calm in (True, False):
        with opened(chromium, written["decoder"][1], calm=calm) as shown:
            assert (set(shown.run(durations)) == {"0s"}) == calm
