"""The studio's first paint, and the attention wall of a model of GPT-2's layers and heads, in a real Chromium.

    python benchmarks/studio_speed.py --repeats 5

needs the extras `serve` and `test`, and a Chromium (or CHROMIUM names one).
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
GPT2 = {"n_layers": 12, "n_heads": 12, "d_model": 768, "d_ff": 3072, "block_size": 1024}
TOKENS = 256
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


def main() -> None:
    """Measure, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="of each measurement; the median is printed")
    repeats = parser.parse_args().repeats
    sys.path.insert(0, str(TESTS))
    from playwright.sync_api import sync_playwright
    from run_folders import write_run
    from running_server import running_app

    from clearhead.config.serving import ServerConfig
    from clearhead.server.studio.app import create_studio

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        os.chdir(folder)
        write_run(Path("runs/gpt2"), "causal", None, **GPT2)
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"), args=["--no-sandbox"]
        )
        paints, lists, walls = [], [], []
        with running_app(create_studio(ServerConfig(device="cpu", engine="eager"))) as url:
            page = browser.new_page()
            page.set_default_timeout(120_000)
            for _ in range(repeats):
                begin = time.perf_counter()
                page.goto(f"{url}/")
                page.locator("table.runs tbody tr").first.wait_for()
                lists.append(time.perf_counter() - begin)
                paints.append(page.evaluate(PAINTED) / 1000)
                page.goto("about:blank")
            page.goto(f"{url}/#screen=attention&run=gpt2&text=once")  # loads the model
            page.locator(".wall button").nth(143).wait_for()
            for number in range(repeats):
                text = ("once upon a time there was " * 20)[number : number + TOKENS]
                begin, used = time.perf_counter(), time.process_time()
                page.evaluate(
                    """(text) => { document.querySelector('.wall button').dataset.old = '';
                    location.hash = `#screen=attention&run=gpt2&text=${encodeURIComponent(text)}`; }""",
                    text,
                )
                page.locator(".wall button[data-old]").wait_for(state="detached")
                walls.append((time.perf_counter() - begin, time.process_time() - used))
        browser.close()
    print(f"first paint: {statistics.median(paints):.2f} s (asked: under 1)")
    print(f"the list of runs is there: {statistics.median(lists):.2f} s")
    wall, processor = (statistics.median(column) for column in zip(*walls, strict=True))
    print(
        f"wall of 12 x 12 heads at {TOKENS} tokens: {wall:.2f} s (asked: under 2); {processor:.2f} s of processor time"
    )
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
