"""500 hostile texts as run name, module path, token and prompt, in a real Chromium: none runs, none breaks the page."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hostile_texts import hostile_texts
from playwright.sync_api import Browser
from real_browser import Opened, opened

from clearhead.config import ModelConfig
from clearhead.inspection import View
from clearhead.inspection.architecture import ArchitectureReport
from clearhead.inspection.attention.view import AttentionView
from clearhead.inspection.labels import visible
from clearhead.inspection.steps.table import TraceStep, TraceTable
from clearhead.pages import document, printable

pytestmark = pytest.mark.browser

TEXTS = hostile_texts()
AT_ONCE = 25  # texts on a page that takes several
COUNT = "document.querySelectorAll('*').length"
READ_BACK = 'document.getElementById("shown").textContent = JSON.parse(document.getElementById("data").textContent).x;'


def named(text: str) -> View:
    return ArchitectureReport(ModelConfig.read({"architecture": "bigram"}), text)


def attended(texts: list[str]) -> View:
    tokens = tuple(visible(text) for text in texts)
    allowed = np.tril(np.ones((len(texts), len(texts)), dtype=bool))
    weights = np.broadcast_to(allowed / allowed.sum(1, keepdims=True), (2, 2, len(texts), len(texts)))
    return AttentionView("self", weights, allowed, tokens, tokens)


def traced(texts: list[str]) -> View:
    """Module paths, files and operations of a stranger's model; the target is the prompt's page."""
    steps = [TraceStep(text, text or "mm", ("B", text), (1, 2), text, 8, 0, text, 1) for text in texts]
    return TraceTable(texts[0], tuple(steps), {"B": 1, "T": 2}, 0, call=texts[-1], class_name=texts[0])


def assert_unharmed(shown: Opened) -> None:
    assert shown.run("typeof window.hostile") == "undefined", "a text ran"
    assert not shown.errors, shown.errors
    assert all(url.startswith(("file://", "about:")) for url in shown.requests), shown.requests


def in_frames(shown: Opened, pages: list[str], script: str) -> list[list[object]]:
    """Each page as a document of its own beside the others, and of each [script's value, elements, what ran]."""
    values: list[list[object]] = shown.page.evaluate(
        """async ([pages, script]) => {
            document.body.replaceChildren();
            const frames = await Promise.all(pages.map((page) => new Promise((resolve) => {
                const frame = document.createElement("iframe");
                frame.addEventListener("load", () => resolve(frame));
                frame.srcdoc = page;
                document.body.append(frame);
            })));
            return frames.map(({ contentWindow, contentDocument }) => [
                contentDocument.querySelector(script).textContent,
                contentDocument.querySelectorAll("*").length,
                typeof contentWindow.hostile,
            ]);
        }""",
        [pages, script],
    )
    return values


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    path = tmp_path / "parent.html"
    path.write_text("<!doctype html><title>frames</title><body>", encoding="utf-8")
    return path


def test_a_run_may_have_any_name(chromium: Browser, parent: Path) -> None:
    with opened(chromium, parent, calm=True) as shown:
        [[_, elements, _]] = in_frames(shown, [named("plain").html()], "h1")
        for start in range(0, len(TEXTS), AT_ONCE):
            reports = [named(text) for text in TEXTS[start : start + AT_ONCE]]
            expected = [[printable(report.title), elements, "undefined"] for report in reports]
            assert in_frames(shown, [report.html() for report in reports], "h1") == expected
        assert_unharmed(shown)


def test_data_reaches_a_script_as_it_is_shown(chromium: Browser, parent: Path) -> None:
    def page(text: str) -> str:
        return document(text, text, '<pre id="shown"></pre>', scripts=[READ_BACK], data={"x": text})

    with opened(chromium, parent) as shown:
        [[_, elements, _]] = in_frames(shown, [page("plain")], "#shown")
        for start in range(0, len(TEXTS), AT_ONCE):
            texts = TEXTS[start : start + AT_ONCE]
            expected = [[printable(text), elements, "undefined"] for text in texts]
            assert in_frames(shown, [page(text) for text in texts], "#shown") == expected
        assert_unharmed(shown)


@pytest.mark.parametrize("write", [attended, traced])
def test_tokens_prompts_and_module_paths_may_be_any_text(
    chromium: Browser, tmp_path: Path, write: Callable[[list[str]], View]
) -> None:
    path = tmp_path / "page.html"
    path.write_text(write(["plain"] * AT_ONCE).html(), encoding="utf-8")
    with opened(chromium, path) as shown:
        for start in range(0, len(TEXTS), AT_ONCE):
            texts = TEXTS[start : start + AT_ONCE]
            path.write_text(write(texts).html(), encoding="utf-8")
            shown.page.goto(path.as_uri())
            assert_unharmed(shown)
            scripts = shown.run("[...document.scripts].map((script) => script.type || 'ours')")
            assert scripts.count("ours") == len(write(texts).scripts)
            assert set(scripts) <= {"ours", "application/json"}
            dangerous = "iframe, base, object, embed, form[action], a[href^=javascript], meta[http-equiv=refresh], img"
            assert shown.page.locator(dangerous).count() == 0
            names = "[...document.querySelectorAll('*')].flatMap((element) => element.getAttributeNames())"
            assert not [name for name in shown.run(names) if name.startswith("on")]
            for button in shown.page.locator("main button, main [role=button]").all()[:10]:
                button.dispatch_event("click")
            assert_unharmed(shown)


def test_the_policy_stops_what_should_get_through(chromium: Browser, tmp_path: Path) -> None:
    """A page into which somebody forgot to escape a text: the second wall holds."""
    path = tmp_path / "page.html"
    attacks = [text for text in TEXTS[:30] if "<" in text and "refresh" not in text]  # which a policy cannot stop
    path.write_text(document("t", "v", "".join(attacks), scripts=["window.ours = 1;"]), encoding="utf-8")
    with opened(chromium, path) as shown:
        assert shown.run("typeof window.hostile") == "undefined"
        assert any("Content Security Policy" in error for error in shown.errors)


def test_a_text_that_ran_would_be_noticed(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<!doctype html><title>t</title><script>window.hostile = 1</script>", encoding="utf-8")
    with opened(chromium, path) as shown:
        assert shown.run("window.hostile") == 1
