"""A real Chromium without a network, and pages opened in it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, Playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TIMEOUT = 20_000  # milliseconds of any wait
Scheme = Literal["light", "dark"]


def launch(playwright: Playwright) -> Browser:
    """The browser that `CHROMIUM` names, or the system's."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert path, "there is no Chromium: `make browser` installs it where it may, or CHROMIUM names it"
    return playwright.chromium.launch(executable_path=path, args=FLAGS, timeout=60_000)


@dataclass
class Opened:
    """A page that is open, and what it did that it should not."""

    page: Page
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self.page.evaluate(script)

    def assert_quiet(self) -> None:
        """Nothing went wrong in it; from a file it requested nothing but itself, else only from where it came."""
        assert not self.errors, self.errors
        if self.requests[0].startswith("file://"):
            assert len(self.requests) == 1, self.requests
        origin = self.requests[0].rstrip("/")
        assert all(request.startswith(origin) for request in self.requests), self.requests

    def assert_accessible(self) -> None:
        """axe has nothing to say against it, by the rules of WCAG 2 A and AA and by its own."""
        self.page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
        result = self.page.evaluate("() => axe.run(document)")
        faults = [f"{entry['id']}: {entry['nodes'][0]['html'][:200]}" for entry in result["violations"]]
        assert not faults, "\n".join(faults)


@contextmanager
def opened(
    browser: Browser,
    address: Path | str,
    *,
    scheme: Scheme = "light",
    width: int = 1280,
    scripts: bool = True,
    calm: bool = False,
) -> Iterator[Opened]:
    """A page in a context of its own.

    Args:
        address: a file, for which the network is off, or the URL of a server of ours.
        calm: the reader prefers reduced motion.
    """
    context = browser.new_context(
        offline=isinstance(address, Path),
        color_scheme=scheme,
        viewport={"width": width, "height": 900},
        java_script_enabled=scripts,
        reduced_motion="reduce" if calm else "no-preference",
    )
    context.set_default_timeout(TIMEOUT)
    shown = Opened(context.new_page())
    shown.page.on("request", lambda request: shown.requests.append(request.url))
    shown.page.on("console", lambda message: shown.errors.append(message.text) if message.type != "log" else None)
    shown.page.on("pageerror", lambda error: shown.errors.append(str(error)))
    shown.page.on("dialog", lambda dialog: shown.errors.append(f"dialog: {dialog.message}"))
    try:
        shown.page.goto(address.as_uri() if isinstance(address, Path) else address, timeout=TIMEOUT)
        yield shown
    finally:
        context.close()
