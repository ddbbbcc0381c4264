"""The pages of `attend` and `predict` in a real Chromium: mouse, keyboard, screen reader, numbers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser
from real_browser import Opened, Scheme, opened

from clearhead.inspection import AttentionView, Prediction
from clearhead.inspection.attention.page import TOP
from clearhead.inspection.labels import visible
from clearhead.inspection.prediction.prediction import Lens, LensCell, PositionPrediction, TokenProbability

pytestmark = pytest.mark.browser

TOKENS = ("To", " be", " or", "\n", " not", "<b>", " be")
SOURCE = ("Sein", " oder", " nicht", "⟨end⟩")


def attention(kind: str) -> AttentionView:
    draw = np.random.default_rng(0)
    keys = SOURCE if kind == "cross" else TOKENS
    allowed = np.ones((len(TOKENS), len(keys)), bool) if kind == "cross" else np.tri(len(TOKENS), dtype=bool)
    weights = draw.random((2, 3, *allowed.shape)) ** 6 * allowed
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    return AttentionView("cross" if kind == "cross" else "self", weights, allowed, TOKENS, keys)


def prediction() -> Prediction:
    positions = tuple(
        PositionPrediction(
            token, following, log, rank, 2.5, (TokenProbability(" be", 0.5), TokenProbability(following or "?", 0.125))
        )
        for token, following, log, rank in zip(
            TOKENS,
            [*TOKENS[1:], None],
            [-0.7, -2.0, -3.0, -8.0, -0.1, -1.0, None],
            [1, 2, 3, 4, 1, 2, None],
            strict=True,
        )
    )
    rows = tuple(tuple(LensCell(token, 0.25, 1) for token in TOKENS) for _ in range(3))
    return Prediction("causal", positions, Lens(rows, has_norm=True, has_ngrams=False))


VIEWS = {"self": attention("self"), "cross": attention("cross"), "prediction": prediction()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, view in VIEWS.items():
        (folder / f"{name}.html").write_text(view.html(), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in VIEWS}


@pytest.fixture(params=["self", "cross"])
def heads(
    request: pytest.FixtureRequest, chromium: Browser, written: dict[str, Path]
) -> Iterator[tuple[AttentionView, Opened]]:
    view = VIEWS[request.param]
    assert isinstance(view, AttentionView)
    with opened(chromium, written[request.param]) as shown:
        yield view, shown
        shown.assert_quiet()


def shares(shown: Opened, view: AttentionView) -> list[float]:
    """How much of the chosen token's attention each key gets, as its title says."""
    where = "#keys > *" if view.kind == "cross" else "#queries > *"
    titles = shown.run(f"[...document.querySelectorAll('{where}')].map((element) => element.title)")
    return [float(title.rstrip("%")) for title in titles]


@pytest.mark.parametrize("name", list(VIEWS))
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 380)])
def test_a_page_is_accessible_quiet_and_no_wider_than_the_screen(
    chromium: Browser, written: dict[str, Path], name: str, scheme: Scheme, width: int
) -> None:
    with opened(chromium, written[name], scheme=scheme, width=width) as shown:
        for summary in shown.page.locator("summary").all():
            summary.click()
        shown.assert_accessible()
        assert shown.run("document.documentElement.scrollWidth") <= width
        shown.assert_quiet()


def test_a_head_chosen_in_the_wall_is_shown_with_the_numbers_of_the_library(
    heads: tuple[AttentionView, Opened],
) -> None:
    view, shown = heads
    for number in (4, 1):
        shown.page.locator("#wall button").nth(number).click()
        layer, head = divmod(number, 3)
        assert shown.page.inner_text("#shown") == f"Layer {layer}, head {head}"
        assert f"{view.heads[number].entropy:.2f} bits" in shown.page.inner_text("#sentence")
        pressed = "[...document.querySelectorAll('#wall button')].map((button) => button.ariaPressed)"
        assert [index for index, value in enumerate(shown.run(pressed)) if value == "true"] == [number]
        for row in range(len(TOKENS)):
            shown.page.locator("#queries .token").nth(row).click()
            np.testing.assert_allclose(shares(shown, view), 100 * view.weights[layer, head, row], atol=0.051)
            assert shown.page.inner_text("#looking") == visible(TOKENS[row])


def test_the_drawn_cells_are_those_of_the_chosen_head(heads: tuple[AttentionView, Opened]) -> None:
    view, shown = heads
    shown.page.locator("#wall button").nth(5).click()
    drawn = np.zeros(view.allowed.shape)
    cells = shown.run("[...document.querySelector('svg.large .cells').children].map((path) => path.outerHTML)")
    for path in cells:
        opacity = float(path.partition('fill-opacity="')[2].partition('"')[0])
        for run in path.partition('d="')[2].partition('"')[0].split("z")[:-1]:
            column, row, length = (float(part) for part in run[1:].replace("h", ",").replace("v", ",").split(",")[:3])
            drawn[int(row), int(column) : int(column + length)] = opacity
    np.testing.assert_allclose(drawn, np.sqrt(view.weights[1, 2]), atol=0.026)


def test_a_pointed_token_isolates_its_row_and_the_keyboard_walks(heads: tuple[AttentionView, Opened]) -> None:
    view, shown = heads
    shown.page.locator("#wall button").nth(0).click()
    tokens = shown.page.locator("#queries .token")
    tokens.nth(2).focus()
    assert shown.page.locator("[data-row].on").text_content() == visible(TOKENS[2])
    assert shown.page.locator("[data-row].off").count() == len(TOKENS) - 1
    shown.page.keyboard.press("ArrowRight")
    assert shown.page.locator("[data-row].on").text_content() == visible(TOKENS[3])
    readout = shown.page.inner_text("#readout")
    best = sorted((100 * view.weights[0, 0, 3]).tolist(), reverse=True)[:TOP]
    assert f"{best[0]:.1f}%" in readout
    box = shown.page.locator(".plane").bounding_box()
    assert box is not None
    step = box["width"] / view.weights.shape[3]
    shown.page.mouse.move(box["x"] + step / 2, box["y"] + box["height"] - 3)
    expected = f"{visible(TOKENS[-1])} → {visible(view.keys[0])}: {100 * view.weights[0, 0, -1, 0]:.1f}%"
    assert shown.page.inner_text("#readout") == expected
    shown.page.mouse.move(1, 1)
    tokens.nth(2).blur()
    assert shown.page.locator("[data-row].off").count() == 0
    shown.page.locator("#wall button").nth(0).focus()
    shown.page.keyboard.press("ArrowDown")
    shown.page.keyboard.press("Enter")
    assert shown.page.inner_text("#shown") == "Layer 1, head 0"


def test_each_token_shows_what_was_likely_in_its_place(chromium: Browser, written: dict[str, Path]) -> None:
    view = VIEWS["prediction"]
    assert isinstance(view, Prediction)
    with opened(chromium, written["prediction"]) as shown:
        buttons = shown.page.locator("#tokens button")
        assert buttons.count() == len(TOKENS)
        for index, position in enumerate(view.positions):
            buttons.nth(index).click()
            assert shown.page.inner_text("#heading") == f"After “{visible(position.token)}”"
            if position.bits is not None:
                assert f"{position.bits:.2f} bits" in shown.page.inner_text("#sentence")
            entries = shown.page.locator("#candidates li")
            for entry, candidate in zip(entries.all(), position.top, strict=True):
                assert entry.locator(".token").inner_text() == visible(candidate.token)
                assert entry.locator("b").inner_text() == f"{candidate.probability:.1%}"
        buttons.nth(0).focus()
        shown.page.keyboard.press("ArrowRight")
        assert shown.page.inner_text("#heading") == f"After “{visible(TOKENS[1])}”"
        shown.assert_quiet()


def test_without_scripts_the_tables_say_it(chromium: Browser, written: dict[str, Path]) -> None:
    with opened(chromium, written["self"], scripts=False) as shown:
        assert not shown.page.locator(".script-only").first.is_visible()
        shown.page.locator("summary").first.click()
        assert shown.page.locator("#links tr").count() == len(TOKENS)
        assert shown.page.locator("svg.large .cells path").count() > 3
    with opened(chromium, written["prediction"], scripts=False) as shown:
        assert shown.page.locator("table").count() == 2
        assert shown.page.locator("#candidates li").count() == 2
