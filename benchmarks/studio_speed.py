"""The studio's first paint, its wall of heads for a model of GPT-2's shape, and what watching a training costs it.

    python benchmarks/studio_speed.py --repeats 5 --windows 8

needs the extras `serve` and `test`, and a Chromium (or CHROMIUM names one). While a model trains in a process of its
own, its page is opened and closed in turn, and the speed of the steps in each window is read from the training's log.
On a busy machine that speed says little: what the server and the browser take of the processor in a window says more.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TESTS = Path(__file__).resolve().parents[1] / "tests"
GPT2 = {"n_layers": 12, "n_heads": 12, "d_model": 768, "d_ff": 3072, "block_size": 1024}
TOKENS = 256
PATIENCE = 300.0  # seconds
WARM_UP = 60  # lines of the log before the first window
WINDOW = 8.0  # seconds in which a training is watched, or is not
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


def main() -> None:
    """Measure, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="of each measurement; the median is printed")
    parser.add_argument("--windows", type=int, default=8, help="in which a training is watched; as many in which not")
    args = parser.parse_args()
    repeats = args.repeats
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
        watched = watch(browser, args.windows) if args.windows else []
        browser.close()
    print(f"first paint: {statistics.median(paints):.2f} s (asked: under 1)")
    print(f"the list of runs is there: {statistics.median(lists):.2f} s")
    wall, processor = (statistics.median(column) for column in zip(*walls, strict=True))
    print(
        f"wall of 12 x 12 heads at {TOKENS} tokens: {wall:.2f} s (asked: under 2); {processor:.2f} s of processor time"
    )
    if watched:
        alone, watched_rate, ratio, used = (statistics.median(column) for column in zip(*watched, strict=True))
        print(f"a training's tokens per second: {alone:,.0f} alone, {watched_rate:,.0f} while it is watched")
        print(f"ratio of neighboring windows, median of {len(watched)}: {ratio:.3f} (asked: at least 0.98)")
        share = used / (os.cpu_count() or 1)
        print(f"watching takes {1000 * used:.0f} ms of processor time a second, {share:.1%} of what the machine has")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def watch(browser: "Browser", windows: int) -> list[tuple[float, float, float, float]]:
    """Train the stories, and watch in every second window.

    Tokens per second without and with, their ratio, and what the server and the browser take of a processor more.
    """
    from running_server import running_app

    from clearhead.config.serving import ServerConfig
    from clearhead.server.studio.app import create_studio

    seconds = 2 * windows * (WINDOW + 2)
    command = [sys.executable, "-m", "clearhead", "train", "stories", "--preset", "tiny", "--out", "runs/watched"]
    training = subprocess.Popen([*command, "--train.steps", "1000000", "--json"], stderr=subprocess.DEVNULL)
    log, rates, costs = Path("runs/watched/metrics.jsonl"), list[float](), list[float]()
    try:
        with running_app(create_studio(ServerConfig(device="cpu", engine="eager"))) as url:
            end = time.monotonic() + PATIENCE
            while not log.exists() or len(log.read_text(encoding="utf-8").splitlines()) < WARM_UP:
                assert time.monotonic() < end, "the training does not begin"
                time.sleep(0.5)
            page = browser.new_page()
            end = time.monotonic() + seconds + PATIENCE
            for number in range(2 * windows):
                page.goto(f"{url}/#screen=runs&run=watched" if number % 2 else "about:blank")
                time.sleep(2)  # until the page stands
                begin, since, used = log.stat().st_size, time.monotonic(), processor_seconds(browser)
                time.sleep(WINDOW)
                rates.append(speed_since(log, begin))
                costs.append((processor_seconds(browser) - used) / (time.monotonic() - since))
                page.goto("about:blank")
                assert time.monotonic() < end, "the machine is too busy"
    finally:
        training.send_signal(signal.SIGINT)
        training.wait(PATIENCE)
    more = [watched - alone for alone, watched in zip(costs[::2], costs[1::2], strict=True)]
    pairs = zip(rates[::2], rates[1::2], more, strict=True)
    return [(alone, watched, watched / alone, cost) for alone, watched, cost in pairs]


def processor_seconds(browser: "Browser") -> float:
    """What this process, which serves, and those of the browser took of a processor until now."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return time.process_time() + sum(float(process["cpuTime"]) for process in processes)


def speed_since(log: Path, begin: int) -> float:
    """Tokens per second of the steps that a log tells of behind so many bytes, of whole lines alone."""
    with log.open("rb") as lines:
        lines.seek(begin)
        text = lines.read().decode("utf-8")
    records = [json.loads(line) for line in text.splitlines()[1:-1]]
    steps = [record for record in records if record["kind"] == "step"]
    return float(sum(record["tokens"] for record in steps) / sum(record["seconds"] for record in steps))


if __name__ == "__main__":
    main()
