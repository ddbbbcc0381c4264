"""The studio's page while something changes: the run, the text, a training that begins, a page that comes later."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from filelock import FileLock
from playwright.sync_api import Browser, Route, expect
from real_browser import TIMEOUT, Opened, opened
from run_folders import write_run
from running_server import running_app

from clearhead.config.serving import ServerConfig
from clearhead.server.studio.app import create_studio

pytestmark = pytest.mark.browser

TOKEN = "a-token-that-nobody-guesses"
DRAWN = {"attention": ".wall", "next": ".odds", "xray": ".steps"}  # what each screen draws of a text
WEIGHTS = "model.safetensors"
expect.set_options(timeout=TIMEOUT)


@pytest.fixture
def show(chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Opened]]:
    """Opens a view of the studio over the runs `writer`, `empty` without a model, and `damaged`."""
    monkeypatch.chdir(tmp_path)
    for name in ("damaged", "empty", "writer"):
        write_run(Path("runs") / name)
    Path("runs/damaged/clearhead.toml").write_text("not [TOML", encoding="utf-8")
    Path("runs/empty", WEIGHTS).rename("weights")
    with ExitStack() as stack:
        url = stack.enter_context(running_app(create_studio(ServerConfig(device="cpu", engine="eager", token=TOKEN))))

        def shown(**state: object) -> Opened:
            fields = "&".join(f"{name}={value}" for name, value in state.items())
            page = stack.enter_context(opened(chromium, f"{url}/#token={TOKEN}&{fields}"))
            expect(page.page.locator("#summary")).not_to_contain_text("Loading")
            return page

        yield shown


def read(shown: Opened, text: str) -> None:
    shown.page.locator("#prompt [name=text]").fill(text)
    shown.page.locator("#prompt button[type=submit]").click()


@pytest.mark.parametrize("other", ["damaged", "empty"])
@pytest.mark.parametrize("screen", DRAWN)
def test_no_number_stays_under_the_name_of_another_run(show: Callable[..., Opened], screen: str, other: str) -> None:
    shown = show(screen=screen, run="writer", text="once")
    drawn = shown.page.locator(f"#screen-{screen} {DRAWN[screen]}")
    expect(drawn).to_be_visible()
    shown.page.locator("#run").select_option(other)
    expect(drawn).to_be_hidden()


@pytest.mark.parametrize("screen", DRAWN)
def test_no_number_stays_beside_another_text(show: Callable[..., Opened], screen: str) -> None:
    shown = show(screen=screen, run="writer", text="once")
    drawn = shown.page.locator(f"#screen-{screen} {DRAWN[screen]}")
    expect(drawn).to_be_visible()
    held = list[Route]()
    path = {"next": "predict"}.get(screen, screen)
    shown.page.route(f"**/studio/{path}", lambda route: held.append(route))
    read(shown, "once upon")
    expect(shown.page.locator(f"#screen-{screen} > [role=status]")).to_have_text("Reading…")
    expect(drawn).to_be_hidden()
    held[0].continue_()
    expect(drawn).to_be_visible()
    shown.assert_quiet()


NUMBERS = {
    "attention": ("attention/weights", ".wall", ".detail"),
    "xray": ("xray/values", ".steps", ".activation"),
    "next": ("logits", "#prompt", ".odds"),
    "write": ("beams", ".beams form", ".n-best"),
}  # what brings a screen's numbers, what stands before they arrive, and what waits for them


@pytest.mark.parametrize("screen", NUMBERS)
def test_nothing_empty_is_shown_until_its_numbers_arrive(show: Callable[..., Opened], screen: str) -> None:
    write_run(Path("runs/translator"), "seq2seq")
    path, before, waiting = NUMBERS[screen]
    run, text = ("translator", "the old dog") if screen == "write" else ("writer", "once")
    shown = show(screen="runs", run=run)
    shown.page.route(f"**/studio/{path}", lambda route: None)
    with shown.page.expect_request(f"**/studio/{path}"):
        shown.page.goto(re.sub("#.*", f"#screen={screen}&run={run}&text={text}", shown.page.url))
    expect(shown.page.locator(before)).to_be_visible()
    shown.assert_accessible()
    assert shown.page.locator(":is(h2, button):visible:empty, canvas.map:not([aria-label]):visible").count() == 0
    expect(shown.page.locator(waiting)).to_be_hidden()
    shown.page.unroute(f"**/studio/{path}")  # what was held goes on
    expect(shown.page.locator(waiting)).to_be_visible()
    shown.assert_accessible()
    shown.assert_quiet()


@pytest.mark.parametrize("screen", ["architecture", "doctor"])
def test_no_page_stays_under_the_name_of_a_damaged_run(show: Callable[..., Opened], screen: str) -> None:
    shown = show(screen=screen, run="writer")
    page = shown.page.locator(f"#screen-{screen} iframe")
    expect(page.content_frame.locator("h1")).to_contain_text("writer", timeout=3 * TIMEOUT)
    shown.page.evaluate(f"location.hash = 'screen={screen}&run=damaged'")  # a link that somebody sent
    expect(shown.page.locator("#summary")).to_contain_text("damaged")
    expect(page).to_have_count(0)


def test_the_vectors_of_the_xray_are_those_of_the_text_whatever_is_chosen_meanwhile(
    show: Callable[..., Opened],
) -> None:
    shown = show(screen="xray", run="writer", text="once")
    vectors, heading = shown.page.locator(".vectors canvas").first, shown.page.locator(".activation h2")
    expect(heading).to_have_text("stack.input")
    held = list[Route]()
    shown.page.route("**/studio/xray/values", lambda route: held.append(route))
    read(shown, "once upon")
    expect(shown.page.locator(".ids .token")).to_have_count(len("once upon"))
    name = "stack.blocks.0.feedforward.part.hidden"
    shown.page.locator(f".steps [data-name='{name}']").click()
    shown.page.unroute("**/studio/xray/values")  # which lets those go on that were held
    expect(heading).to_have_text(name)
    expect(vectors).to_have_attribute("aria-label", re.compile(f"{len('once upon')} rows"))


def test_a_training_that_begins_is_shown_once(show: Callable[..., Opened]) -> None:
    shown = show(screen="runs", run="writer")
    training = {"name": "my-run", "is_running": True, "exit_code": None, "lines": ["Training a model"]}

    def answer(route: Route) -> None:
        if route.request.method == "POST":
            write_run(Path("runs/my-run"))
            route.fulfill(json=training, status=201)
        else:
            route.fulfill(json={"trainings": [training]})

    shown.page.route("**/studio/trainings", answer)
    shown.page.locator(".train [name=text]").fill("once upon a time")
    shown.page.get_by_role("button", name="Train", exact=True).click()
    expect(shown.page.locator("#summary")).to_contain_text("my-run (causal)")
    expect(shown.page.get_by_role("button", name="Train", exact=True)).to_be_enabled()  # a second one may run beside it
    shown.page.locator("#run").select_option("writer")
    for _ in range(2):
        with shown.page.expect_response("**/studio/trainings") as response:
            pass
        assert response.value.ok
    expect(shown.page.locator("#summary")).to_contain_text("writer (causal)")


def test_a_page_that_cannot_be_had_yet_says_why_and_comes_by_itself(show: Callable[..., Opened]) -> None:
    shown = show(screen="doctor", run="empty")
    status, page = shown.page.locator("#screen-doctor [role=status]"), shown.page.locator("#screen-doctor iframe")
    expect(status).to_contain_text("is missing", timeout=3 * TIMEOUT)
    expect(page).to_have_count(0)
    Path("weights").rename(Path("runs/empty", WEIGHTS))
    expect(page.content_frame.locator("h1")).to_contain_text("empty", timeout=3 * TIMEOUT)
    expect(status).to_have_text("")


def test_a_page_that_waits_for_others_is_asked_for_again(show: Callable[..., Opened]) -> None:
    shown = show(screen="runs", run="writer")
    refusals = iter([{"error": {"message": "other pages are being made; try again in a moment"}}])

    def answer(route: Route) -> None:
        refusal = next(refusals, None)
        route.continue_() if refusal is None else route.fulfill(json=refusal, status=429)

    shown.page.route("**/frame/**", answer)
    shown.page.locator("[data-screen=architecture]").click()
    expect(shown.page.locator("#screen-architecture [role=status]")).to_contain_text("try again in a moment")
    page = shown.page.locator("#screen-architecture iframe")
    expect(page.content_frame.locator("h1")).to_contain_text("writer", timeout=3 * TIMEOUT)


@pytest.mark.parametrize("screen", ["attention", "next"])
def test_a_token_that_is_pressed_keeps_the_focus(show: Callable[..., Opened], screen: str) -> None:
    shown = show(screen=screen, run="writer", text="once")
    tokens = shown.page.locator(f"#screen-{screen} .strip button.token")
    tokens.nth(1).focus()
    shown.page.keyboard.press("Enter")
    expect(tokens.nth(1)).to_have_attribute("aria-pressed", "true")
    expect(tokens.nth(1)).to_be_focused()
    shown.assert_quiet()


def test_a_training_takes_no_focus_and_is_read_out_once(show: Callable[..., Opened]) -> None:
    log = Path("runs/writer/metrics.jsonl")

    def write(step: int) -> None:
        record = {"kind": "step", "step": step, "loss": 3.0, "tokens": 64, "seconds": 0.1, "learning_rate": 0.01}
        with log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({**record, "gradient_norm": 1.0}) + "\n")

    log.write_text('{"kind": "start", "step": 0, "steps": 100, "process": 1}\n', encoding="utf-8")
    with FileLock(log.parent / ".lock"):  # as a training holds it
        shown = show(screen="runs", run="writer")
        live, stop = shown.page.locator(".live"), shown.page.get_by_role("button", name="Stop and save")
        expect(stop).to_be_visible()
        heard = live.get_by_role("status").text_content()
        for step in (1, 2):
            stop.focus()
            write(step)
            expect(live).to_contain_text(f"step {step} of ")
            expect(stop).to_be_focused()
        assert live.get_by_role("status").text_content() == heard
        line = shown.page.locator(".runs .link").filter(has_text="writer")
        line.focus()
        write(3)
        expect(shown.page.locator(".runs")).to_contain_text("3 of ")
        expect(line).to_be_focused()
    shown.assert_quiet()


def test_the_doctor_leads_to_the_architecture_where_a_box_tells_what_was_checked(show: Callable[..., Opened]) -> None:
    shown = show(screen="doctor", run="writer")
    shown.page.get_by_role("button", name="Show it on the architecture").click()
    frame = shown.page.frame_locator("#screen-architecture iframe")
    box = frame.locator("[data-name='stack.blocks.0.self_attention.part']")
    expect(box).to_have_attribute("aria-label", re.compile(r"\d+ checks passed"), timeout=3 * TIMEOUT)
    box.focus()
    shown.page.keyboard.press("Enter")
    expect(frame.locator("#panel .mark.pass").first).to_be_visible()
    shown.page.get_by_label("what the doctor says, in its places").uncheck()
    expect(frame.locator(".mark")).to_have_count(0)
    expect(frame.locator("h1")).to_contain_text("writer", timeout=3 * TIMEOUT)
    shown.assert_accessible()
    shown.assert_quiet()


def test_a_step_and_its_box_on_the_picture_are_chosen_together(show: Callable[..., Opened]) -> None:
    block = "stack.blocks.1"
    shown = show(screen="xray", run="writer", text="once", activation=f"{block}.self_attention.part.attention")
    heading = shown.page.locator(".activation h2")
    expect(heading).to_have_text(f"{block}.self_attention.part.attention")
    shown.page.locator(".diagram summary").click()
    picture = shown.page.frame_locator(".diagram iframe")
    chosen = picture.locator("[aria-pressed=true]")
    expect(chosen).to_have_attribute("data-name", "stack.blocks.0.self_attention.part.attention", timeout=3 * TIMEOUT)
    picture.locator("[data-name='stack.blocks.0.feedforward.part.up']").click()
    expect(heading).to_have_text(f"{block}.feedforward.part.up")  # of the block that was shown
    shown.page.locator(f".steps [data-name='{block}.self_attention.norm']").or_(
        shown.page.locator(".steps [data-name='stack.blocks.0.self_attention.norm']")
    ).first.click()
    expect(chosen).to_have_attribute("data-name", "stack.blocks.0.self_attention.norm")
    shown.assert_accessible()
    shown.assert_quiet()
