"""The process that renders chat templates dies: another takes its turn once, before the template is blamed."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from clearhead.data import ChatTemplateError
from clearhead.data.tokenizers import render_process
from clearhead.data.tokenizers.render_process import Rendering, RenderProcess

DIES = [sys.executable, "-I", "-S", "-c", "input()"]  # when it is asked
Start = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def process() -> Iterator[RenderProcess]:
    process = RenderProcess()
    yield process
    process.close()


def deaths(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """Have the first processes die; the list gets an entry for each that is started."""
    starts, start = list[int](), render_process._start

    def dying() -> "subprocess.Popen[bytes]":
        starts.append(len(starts))
        if len(starts) > count:
            return start()
        return subprocess.Popen(DIES, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    monkeypatch.setattr(render_process, "_start", dying)
    return starts


def test_a_process_that_somebody_killed_is_started_again(process: RenderProcess) -> None:
    assert process.render("{{ word }}", [Rendering({"word": "fine"})]) == ["fine"]
    assert process._process is not None
    process._process.kill()
    process._process.wait(60)
    assert process.render("{{ word }}", [Rendering({"word": "again"})]) == ["again"]


def test_a_template_is_blamed_for_the_second_death(process: RenderProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = deaths(monkeypatch, 1)
    assert process.render("{{ word }}", [Rendering({"word": "fine"})]) == ["fine"]
    assert len(starts) == 2
    process.close()
    starts = deaths(monkeypatch, 3)
    with pytest.raises(ChatTemplateError, match="breaks what renders it"):
        process.render("{{ word }}", [Rendering({"word": "fine"})])
    assert len(starts) == 2


def test_what_takes_too_long_is_not_tried_again(process: RenderProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_process, "SECONDS", 0.3)
    starts = deaths(monkeypatch, 0)
    template = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(ChatTemplateError, match="takes too much time"):
        process.render(template, [Rendering({})])
    assert len(starts) == 1
