"""Every lesson of the built site in a real Chromium: its pictures, its answers, nothing requested from elsewhere."""

import json
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser
from real_browser import Scheme, opened

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]  # the site may have to be built first

ROOT = Path(__file__).parents[2]
KEPT = sorted((ROOT / "lessons" / "outputs").glob("*.ipynb"))
SOURCES = ("docs", "lessons", "src", "benchmarks/results")
SUFFIXES = {".py", ".md", ".ipynb", ".toml", ".png", ".svg"}
SIZES = "[...document.querySelectorAll('article .cell_output img')].map((image) => [image.naturalWidth, image.width])"
EMPTY = (
    "[...document.querySelectorAll('article .cell_output svg')]"
    ".filter((picture) => picture.getBoundingClientRect().width === 0).length"
)
# axe looks at each colored word of the code by itself, for minutes. Two of each class and place say the same.
THINNED = """() => {
  const counts = {};
  for (const span of [...document.querySelectorAll(".highlight pre span")].reverse()) {
    const kind = `${span.parentElement.className} ${span.className}`;
    counts[kind] = (counts[kind] || 0) + 1;
    if (counts[kind] > 2) span.replaceWith(...span.childNodes);
  }
  document.querySelectorAll(".highlight pre").forEach((code) => code.normalize());
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site: what `make docs` built, where nothing that it is made of has changed since, else built now."""
    html = ROOT / "build" / "site" / "html"
    changed = max(
        path.stat().st_mtime for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES
    )
    if (html / "index.html").exists() and (html / "index.html").stat().st_mtime > changed:
        return html
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "site"))
        from build import build

        assert build(folder) == 0
        for name in ("build", "pages"):
            sys.modules.pop(name, None)
    return folder / "html"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where a server of files shows the site."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join(5)


def pictures(notebook: dict[str, Any]) -> int:
    """How many outputs of a notebook are pictures."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return sum(any(kind.startswith("image/") for kind in output.get("data", ())) for output in outputs)


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.stem)
def test_a_lesson_is_accessible_quiet_and_has_its_pictures(
    chromium: Browser, address: str, kept: Path, scheme: Scheme, width: int
) -> None:
    notebook = json.loads(kept.read_text(encoding="utf-8"))
    answers = sum("hide-cell" in cell["metadata"].get("tags", ()) for cell in notebook["cells"])
    with opened(chromium, f"{address}lessons/{kept.stem}.html", scheme=scheme, width=width) as shown:
        folded = shown.page.locator("article .cell details")
        assert folded.count() == answers
        assert not [True for number in range(answers) if folded.nth(number).get_attribute("open") is not None]
        for number in range(answers):
            folded.nth(number).locator("summary").click()
        shown.page.wait_for_function("[...document.images].every((image) => image.complete)")
        sizes = shown.run(SIZES)
        assert len(sizes) == pictures(notebook)
        assert all(natural > 0 and 0 < drawn <= width for natural, drawn in sizes), sizes
        assert shown.run(EMPTY) == 0
        assert shown.run("document.documentElement.scrollWidth") <= width
        shown.run(THINNED)
        shown.assert_accessible()
        assert not shown.errors, shown.errors
        elsewhere = [request for request in shown.requests if not request.startswith((address, "data:"))]
        assert elsewhere == []
