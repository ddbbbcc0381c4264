"""The studio in a real Chromium with texts that mean harm, with a training that grows, and with a server that dies."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import tokenizers
from child_processes import PATIENCE, Child
from filelock import FileLock
from hostile_texts import hostile_texts
from playwright.sync_api import Browser, expect
from real_browser import TIMEOUT, Opened, opened
from run_folders import write_run
from running_server import running_app
from tokenizers import decoders, models, pre_tokenizers

from clearhead.config.serving import ServerConfig
from clearhead.data import Tokenizer
from clearhead.server.studio.app import create_studio
from clearhead.workflows.runs.folder import RunFolder

pytestmark = pytest.mark.browser

TOKEN = "a-token-that-nobody-guesses"
FIELDS = (
    *("screen", "run", "runs", "measure", "of", "layer", "head", "query", "key", "position", "path", "without"),
    *("temperature", "top_k", "top_p", "min_p", "lens", "mode", "target", "text", "row", "column"),
)
NUMBERS = ("-1", "999999999", "1e999", "-0", "NaN", "1.5", "0x10", "9" * 400)
expect.set_options(timeout=TIMEOUT)


def record(step: int) -> str:
    fields = {"kind": "step", "step": step, "loss": 3 - step / 100, "tokens": 64, "seconds": 0.1, "learning_rate": 0.01}
    return json.dumps(fields) + "\n"


def start(steps: int = 100) -> str:
    return json.dumps({"kind": "start", "step": 0, "steps": steps, "process": 1}) + "\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    run = write_run(Path("runs/writer"))
    run.metrics.write_text(start() + record(1) + record(2), encoding="utf-8")
    return run


@pytest.fixture
def address(run: RunFolder) -> Iterator[str]:
    with running_app(create_studio(ServerConfig(device="cpu", engine="eager", token=TOKEN))) as url:
        yield f"{url}/"


def assert_unharmed(shown: Opened) -> None:
    assert shown.run("typeof window.hostile") == "undefined", "a text ran"
    # What is refused (400, 404, 429) is what Chromium calls an error of the console, and the page says why.
    assert not [error for error in shown.errors if "Failed to load resource" not in error], shown.errors
    dangerous = (
        "base, object, embed, form[action], a[href^=javascript], meta[http-equiv=refresh], img, script:not([src])"
    )
    assert shown.page.locator(dangerous).count() == 0
    names = "[...document.querySelectorAll('*')].flatMap((element) => element.getAttributeNames())"
    assert not [name for name in shown.run(names) if name.startswith("on")]


@pytest.mark.parametrize("screen", ["runs", "attention", "next", "write"])
def test_any_text_may_stand_in_any_field_of_the_address(chromium: Browser, address: str, screen: str) -> None:
    with opened(chromium, f"{address}#token={TOKEN}&screen={screen}&run=writer&text=once") as shown:
        expect(shown.page.locator("#summary")).to_contain_text("parameters")
        texts = [*hostile_texts(), *NUMBERS]
        shown.page.evaluate(
            """async ([texts, names, screen]) => {
              for (const [index, text] of texts.entries()) {
                const field = names[index % names.length];
                const fields = { screen, run: "writer", text: "once", [field]: text.slice(0, 2000) };
                const state = new URLSearchParams(fields);
                location.hash = `#${state}`;
                await new Promise((resolve) => setTimeout(resolve, 4));
              }
              for (const text of texts.slice(0, 40)) {
                location.hash = "#" + text;
                await new Promise((resolve) => setTimeout(resolve, 4));
              }
            }""",
            [texts, FIELDS, screen],
        )
        assert_unharmed(shown)
        shown.page.evaluate(f"location.hash = '#screen={screen}&run=writer&text=once'")  # and it goes on
        expect(shown.page.locator(f"#screen-{screen}")).to_be_visible()
        expect(shown.page.locator("#summary")).to_contain_text("writer (causal)")
        if screen == "next":
            expect(shown.page.locator(".odds li").first).to_be_visible()
        assert_unharmed(shown)


@pytest.mark.parametrize("screen", ["runs", "attention", "next"])
def test_each_field_of_the_address_may_be_nonsense(chromium: Browser, address: str, screen: str) -> None:
    sound = f"screen={screen}&run=writer&text=once"
    with opened(chromium, f"{address}#token={TOKEN}&{sound}") as shown:
        for field in ("screen", "measure", "path", "temperature", "top_k", "query", "layer", "position"):
            for text in ("constructor", "__proto__", '{"a": 1}', "null", *NUMBERS):
                shown.page.evaluate("(hash) => { location.hash = hash; }", f"{sound}&{field}={text}")
                if field == "path" and screen == "next":
                    shown.page.locator(".odds li .link").first.click()
        shown.page.wait_for_load_state("networkidle")
        assert_unharmed(shown)
        message = shown.page.locator("#message").text_content() or ""
        assert not [word for word in ("undefined", "not a function", "not iterable") if word in message], message


def test_500_samples_of_a_log_are_shown_as_texts(chromium: Browser, address: str, run: RunFolder) -> None:
    with opened(chromium, f"{address}#token={TOKEN}&screen=runs&run=writer") as shown:
        expect(shown.page.locator(".live")).to_contain_text("step 2 of ")
        with FileLock(run.folder / ".lock"), run.metrics.open("a", encoding="utf-8") as log:
            for step, text in enumerate(hostile_texts(), 3):
                log.write(record(step) + json.dumps({"kind": "sample", "step": step, "text": text}) + "\n")
            log.flush()
            expect(shown.page.locator(".live h2")).to_contain_text(f"after step {step}")
            assert_unharmed(shown)


def hostile_tokenizer(separator: str) -> Tokenizer:
    """Its tokens are the hostile texts that a field of a form leaves as they are; a separator stands between them."""
    texts = dict.fromkeys(text.encode("utf-8", "ignore").decode("utf-8") for text in hostile_texts())
    tokens = ["[unknown]", *(text for text in texts if text and not set(text) & {separator, "\r"})]
    library = tokenizers.Tokenizer(models.WordLevel({token: id for id, token in enumerate(tokens)}, tokens[0]))
    library.pre_tokenizer = pre_tokenizers.Split(separator, "removed")
    library.decoder = decoders.Fuse()
    return Tokenizer(library)


@pytest.mark.parametrize(("screen", "drawn"), [("attention", ".wall button"), ("next", ".odds li"), ("xray", ".steps")])
def test_tokens_may_be_any_texts(chromium: Browser, address: str, screen: str, drawn: str) -> None:
    tokenizer, count = hostile_tokenizer("\u241f"), 60
    write_run(Path("runs/hostile"), tokenizer=tokenizer)
    tokens = [tokenizer.decode([id]) for id in range(1, tokenizer.vocab_size)]
    assert len(tokens) > 400
    with opened(chromium, f"{address}#token={TOKEN}&screen={screen}&run=hostile") as shown:
        for start in range(0, len(tokens), count):
            text = "\u241f".join(tokens[start : start + count])
            shown.page.locator("#prompt [name=text]").fill(text)
            shown.page.locator("#prompt button[type=submit]").click()
            expect(shown.page.locator("#screen-" + screen + " > [role=status]").first).not_to_have_text("Reading…")
            expect(shown.page.locator(f"#screen-{screen} {drawn}").first).to_be_visible()
            assert_unharmed(shown)


def test_a_training_is_seen_as_it_grows(chromium: Browser, address: str, run: RunFolder) -> None:
    with opened(chromium, f"{address}#token={TOKEN}&screen=runs&run=writer") as shown:
        expect(shown.page.locator(".live")).to_contain_text("step 2 of ")
        with FileLock(run.folder / ".lock"):  # as a training holds it
            expect(shown.page.get_by_role("button", name="Stop and save")).to_be_visible()
            for step in range(3, 6):
                with run.metrics.open("a", encoding="utf-8") as log:
                    log.write(record(step))
                expect(shown.page.locator(".live")).to_contain_text(f"step {step} of ")
        expect(shown.page.get_by_role("button", name="Go on training")).to_be_visible()
        with FileLock(run.folder / ".lock"), run.metrics.open("a", encoding="utf-8") as log:
            log.write(record(5000))  # the machine is faster than the plan, which is made anew at the next save
            log.flush()
            expect(shown.page.locator(".live")).to_contain_text("step 5,000 of 5,000")
            expect(shown.page.locator(".live")).not_to_contain_text(" left")
        shown.assert_quiet()


def test_a_server_that_is_killed_and_started_again_loses_nothing(chromium: Browser, run: RunFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    def studio() -> Child:
        command = [sys.executable, "-m", "clearhead", "studio", "--no-browser", "--port", str(port)]
        child = Child(command, env={**os.environ, "CLEARHEAD_TOKEN": TOKEN})
        child.wait_for("http")
        return child

    with ExitStack() as stack:
        child = stack.enter_context(studio())
        view = f"http://127.0.0.1:{port}/#token={TOKEN}&screen=runs&run=writer"
        shown = stack.enter_context(opened(chromium, view))
        expect(shown.page.locator(".live")).to_contain_text("step 2 of ")
        with FileLock(run.folder / ".lock"):
            expect(shown.page.get_by_role("button", name="Stop and save")).to_be_visible()
            child.send(signal.SIGKILL)
            child.process.wait(PATIENCE)
            expect(shown.page.locator("#summary")).to_contain_text("cannot be reached")
            with run.metrics.open("a", encoding="utf-8") as log:
                log.write("".join(record(step) for step in range(3, 9)))
        stack.enter_context(studio())
        expect(shown.page.locator("#summary")).to_contain_text("ready", timeout=3 * TIMEOUT)
        expect(shown.page.locator(".live")).to_contain_text("step 8 of ")
        expect(shown.page.get_by_role("button", name="Go on training")).to_be_visible()
        expect(shown.page.locator("#message")).to_be_hidden()
        assert shown.run("location.hash") == "#screen=runs&run=writer"
