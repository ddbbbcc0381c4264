"""From an empty folder to a model of one's own text that writes, in the browser alone, timed.

    python benchmarks/newcomer.py --minutes 2

needs the extras `serve` and `test`, and a Chromium (or CHROMIUM names one). The text that is pasted is the
documentation of this repository. Whoever walks here presses what a person would, and waits for what a person would see.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

DOCS = Path(__file__).resolve().parents[1] / "docs"
ASKED = 300.0  # seconds
PATIENCE = 900_000.0  # milliseconds


def main() -> None:
    """Walk, and print when each thing was there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", default="2", help="of training")
    parser.add_argument("--pictures", type=Path, help="folder for a picture of each stop")
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md")))
    pictures = args.pictures.resolve() if args.pictures else None
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"), args=["--no-sandbox"]
        )
        begin = time.monotonic()
        command = [sys.executable, "-m", "clearhead", "studio", "--no-browser", "--port", "0"]
        studio = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            page = browser.new_context(permissions=["clipboard-read", "clipboard-write"]).new_page()
            page.set_default_timeout(PATIENCE)
            for number, stop in enumerate(walk(page, address(studio), text, args.minutes)):
                print(f"{time.monotonic() - begin:6.1f} s  {stop}", flush=True)
                if pictures:
                    page.screenshot(path=pictures / f"{number}.png")
        finally:
            studio.send_signal(signal.SIGINT)
            studio.wait(60)
            browser.close()
    print(f"asked: under {ASKED:.0f} s; load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def address(studio: "subprocess.Popen[str]") -> str:
    """What the studio prints: where it is."""
    assert studio.stdout is not None
    for line in studio.stdout:
        if match := re.search(r"http://\S+", line):
            return match[0]
    raise AssertionError("the studio ended")


def walk(page: "Page", url: str, text: str, minutes: str) -> Iterator[str]:
    """Each stop, when it is reached."""
    page.goto(url)
    form = page.locator("form.train")
    form.get_by_role("button", name="Train").wait_for()
    yield "the studio is open"
    page.evaluate("(text) => navigator.clipboard.writeText(text)", text)
    form.locator("[name=text]").focus()
    page.keyboard.press("Control+V")  # `fill` takes half a minute for as much, a paste a third of a second
    form.locator("[name=minutes]").fill(minutes)
    form.get_by_role("button", name="Train").click()
    page.locator(".live").get_by_text("step ").first.wait_for()
    yield f"the training on {len(text):,} characters is seen"
    page.get_by_role("cell", name="ready").wait_for()
    yield "the model is ready"
    page.locator("#screens").get_by_text("Write").click()
    page.locator("#write [name=prompt]").fill("The model ")
    page.locator("#write button[type=submit]").click()
    page.locator("#write .end").wait_for()
    yield "it has written: " + page.locator("#write .texts pre").first.inner_text()[:200]


if __name__ == "__main__":
    main()
