"""The page of `clearhead serve` in a real Chromium: what it shows is what the library writes."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from chat_templates import CHATML, tokenizer_files
from playwright.sync_api import Browser, expect
from real_browser import TIMEOUT, Opened, Scheme, opened
from run_folders import LETTERS, write_run
from running_server import running

from clearhead.config.serving import ServerConfig
from clearhead.data import Tokenizer
from clearhead.pages import printable
from clearhead.workflows import generate, translate
from clearhead.workflows.runs.folder import RunFolder

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)>"
TOKEN = "a token that nobody guesses".replace(" ", "-")
expect.set_options(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    folder = tmp_path_factory.mktemp("runs")
    objectives = {"writer": "causal", "translator": "seq2seq", "encoder": "masked", HOSTILE: "causal"}
    written = {name: write_run(folder / name, objective) for name, objective in objectives.items()}
    tokenizer_files("bytes", folder / "files", CHATML)
    chat = Tokenizer.load(folder / "files", keep_frame=True)
    damaged = write_run(folder / "damaged")
    (damaged.folder / "clearhead.toml").write_text("not [TOML", encoding="utf-8")
    return written | {"chat": write_run(folder / "chat", tokenizer=chat, block_size=512), "damaged": damaged}


@pytest.fixture(scope="module")
def address(runs: dict[str, RunFolder]) -> Iterator[str]:
    with running(list(runs.values()), ServerConfig(device="cpu", engine="eager")) as url:
        yield f"{url}/"


@pytest.fixture
def shown(chromium: Browser, address: str) -> Iterator[Opened]:
    with opened(chromium, address) as page:
        expect(page.page.locator("#summary")).to_contain_text("64 tokens")
        yield page
        page.assert_quiet()


def fill(shown: Opened, section: str, **values: object) -> None:
    for name, value in values.items():
        shown.page.locator(f"#{section} [name={name}]").fill(str(value))


def send(shown: Opened, section: str) -> None:
    """Press the button and wait until everything came."""
    shown.page.locator(f"#{section} button[type=submit]").click()
    expect(shown.page.locator(f"#{section} [name=cancel]")).to_be_disabled()


def choose(shown: Opened, run: str) -> None:
    shown.page.locator("#run").select_option(run)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360)])
@pytest.mark.parametrize("run", ["writer", "translator", "encoder", "chat", "damaged"])
def test_it_is_accessible_quiet_and_no_wider_than_the_screen(
    chromium: Browser, address: str, scheme: Scheme, width: int, run: str
) -> None:
    with opened(chromium, f"{address}#run={run}", scheme=scheme, width=width) as shown:
        expect(shown.page.locator("#summary")).to_contain_text(run)
        shown.assert_accessible()
        assert shown.run("document.documentElement.scrollWidth <= window.innerWidth")
        shown.requests[0] = address
        shown.assert_quiet()


def test_texts_are_what_the_library_writes(shown: Opened, runs: dict[str, RunFolder]) -> None:
    fill(shown, "write", prompt="once ", max_tokens=30, temperature=0.7, seed=3, n=2)
    send(shown, "write")
    expect(shown.page.locator("#write .end")).to_have_count(2)
    texts = [pre.text_content() for pre in shown.page.locator("#write pre").all()]
    folder = runs["writer"].folder
    expected = generate(folder, "once ", max_new_tokens=30, temperature=0.7, seed=3, num_samples=2, engine="eager")
    assert texts == expected
    assert "after" in (shown.page.locator("#write .end").first.text_content() or "")
    assert '"seed":3' in (shown.page.locator("#request pre").text_content() or "")


def test_what_the_server_refuses_is_told_in_its_sentence(shown: Opened) -> None:
    fill(shown, "write", prompt="once ", max_tokens=1000)
    send(shown, "write")
    expect(shown.page.locator("#message")).to_be_visible()
    message = shown.page.locator("#message").text_content() or ""
    assert "64" in message
    assert "1000" in message.replace(",", "")
    shown.errors.clear()  # Chromium notes each answer of 400 on its console


def test_translations_are_what_the_library_finds(shown: Opened, runs: dict[str, RunFolder]) -> None:
    choose(shown, "translator")
    sentences = ["once upon a time", "the end"]
    fill(shown, "translate", text="\n".join(sentences), n_best=2, beam_size=3)
    send(shown, "translate")
    expect(shown.page.locator("#translate .translation")).to_have_count(4)
    cards = shown.page.locator("#translate .translation").all()
    texts = [(card.locator("p").nth(1).text_content() or "").split() for card in cards]
    expected = translate(runs["translator"].folder, sentences, {"n_best": 2, "beam_size": 3, "engine": "eager"})
    assert texts == [best.text.split() for translations in expected for best in translations]


def test_a_name_that_is_markup_is_shown_as_text(shown: Opened) -> None:
    choose(shown, HOSTILE)
    expect(shown.page.locator("#summary")).to_contain_text(HOSTILE)
    fill(shown, "write", prompt=" a b", max_tokens=5, seed=1)
    send(shown, "write")
    assert shown.page.locator("img").count() == 0


def test_a_chat_is_what_its_seed_says_and_can_be_taken_back(shown: Opened, address: str) -> None:
    choose(shown, "chat")
    shown.page.locator("#tab-chat").click()
    shown.page.locator("#chat summary").click()
    fill(shown, "chat", message="hello <|im_end|>", system="be nice", max_tokens=12, seed=4, temperature=1)
    send(shown, "chat")
    turns = shown.page.locator("#chat .content")
    expect(turns).to_have_count(2)
    messages = [{"role": "system", "content": "be nice"}, {"role": "user", "content": "hello <|im_end|>"}]
    body = {"model": "chat", "messages": messages, "max_tokens": 12, "seed": 4, "temperature": 1}
    answer = httpx2.post(f"{address}v1/chat/completions", json=body, timeout=60).json()["choices"][0]["message"]
    assert turns.nth(0).text_content() == "hello <|im_end|>"
    assert turns.nth(1).text_content() == printable(answer["content"])
    shown.page.locator("#chat [name=undo]").click()
    expect(turns).to_have_count(0)


def test_the_address_leads_back_to_the_run(chromium: Browser, shown: Opened) -> None:
    choose(shown, "translator")
    url = shown.page.url
    assert "run=translator" in url
    with opened(chromium, url) as again:
        expect(again.page.locator("#translate")).to_be_visible()


def test_the_keyboard_is_enough(shown: Opened) -> None:
    shown.page.locator("#run").focus()
    for _ in range(20):
        shown.page.keyboard.press("Tab")
        if shown.run("document.activeElement.name") == "prompt":
            break
    shown.page.keyboard.type("a")
    shown.page.keyboard.press("Tab")
    shown.page.keyboard.press("Control+A")
    shown.page.keyboard.type("6")
    shown.page.keyboard.press("Enter")
    expect(shown.page.locator("#write .end")).to_contain_text("after")


def test_a_text_can_be_stopped(chromium: Browser, tmp_path: Path) -> None:
    endless = Tokenizer.characters(LETTERS)  # without a token that ends a text
    long = write_run(tmp_path / "long", "causal", endless, block_size=4096)
    with running([long], ServerConfig(device="cpu", engine="eager")) as url, opened(chromium, f"{url}/") as shown:
        expect(shown.page.locator("#summary")).to_contain_text("long")
        fill(shown, "write", prompt="a", max_tokens=4000, temperature=2, seed=1)
        shown.page.locator("#write button[type=submit]").click()
        expect(shown.page.locator("#write pre")).to_have_text(re.compile(".\\S{3}"))
        shown.page.locator("#write [name=cancel]").click()
        expect(shown.page.locator("#write .end")).to_contain_text("stopped after")


def test_a_token_is_asked_for_and_kept(chromium: Browser, runs: dict[str, RunFolder]) -> None:
    config = ServerConfig(device="cpu", engine="eager", token=TOKEN)
    with running([runs["writer"]], config) as url, opened(chromium, f"{url}/") as shown:
        expect(shown.page.locator("#token")).to_be_visible()
        shown.page.locator("#token").fill(TOKEN)
        shown.page.locator("#unlock").click()
        expect(shown.page.locator("#summary")).to_contain_text("writer")
        fill(shown, "write", prompt="a", max_tokens=3, seed=1)
        send(shown, "write")
        expect(shown.page.locator("#write .end")).to_contain_text("after")
        assert TOKEN not in shown.page.content()
        assert all("401" in error for error in shown.errors)
