"""Runs side by side: figures, the options that differ, and a page."""

import re
from typing import Any

import pytest
from workflow_helpers import tiny, write_text

import clearhead as ch
from clearhead.errors import ClearheadError, DataError, UsageError
from clearhead.inspection.curves.svg import Series, chart


@pytest.fixture(autouse=True)
def text() -> None:
    write_text()


def train(name: str, **options: Any) -> ch.Run:
    return ch.train("my.txt", out=f"runs/{name}", options={**tiny(), **options}, check=False)


def test_what_differs_is_told_and_who_is_lowest() -> None:
    train("a")
    train("b", **tiny(learning_rate=1e-5))
    compared = ch.compare_runs("a", "runs/b")
    assert compared.names == ("a", "b")
    assert list(compared.options) == ["train.learning_rate"]
    assert compared.options["train.learning_rate"][1] == 1e-5
    low, high = (figures["bits_per_byte"] for figures in compared.figures)
    assert low < high
    assert (
        compared.verdict
        == f"a has the lowest validation loss: {low:.4f} bits per byte, {high - low:.4f} below the next."
    )
    page = compared.page.read_text(encoding="utf-8")
    assert compared.page.as_posix() == "runs/compare.html"
    for part in ('class="color0"', 'class="color1"', "train.learning_rate", "seconds in steps"):
        assert part in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "what describes a picture is found by its name"
    assert len(ch.load("a").history) == len(ch.load("b").history)


def test_one_run_alone_is_told_what_it_lacks() -> None:
    train("alone")
    with pytest.raises(UsageError, match="name another one beside alone"):
        ch.compare_runs("alone")


def test_the_newest_trainings_are_compared_where_none_is_named() -> None:
    for name in ("first", "second", "third"):
        train(name)
    assert ch.compare_runs().names == ("third", "second")


def test_losses_of_different_texts_are_not_ranked() -> None:
    train("a")
    train("b", data={"val_fraction": 0.3})
    assert ch.compare_runs("a", "b").verdict == "Their held-out texts differ, so their losses compare only roughly."


def test_names_that_two_folders_share_are_told_apart() -> None:
    train("a")
    ch.train("my.txt", out="elsewhere/a", options=tiny(), check=False)
    assert ch.compare_runs("a", "elsewhere/a", out="page.html").names == ("runs/a", "elsewhere/a")


def test_one_run_is_no_comparison() -> None:
    train("a")
    for runs in ([], ["a"]):
        with pytest.raises(UsageError, match="needs two runs"):
            ch.compare_runs(*runs)
    with pytest.raises(DataError, match="there is no run 'b'"):
        ch.compare_runs("a", "b")


def test_a_page_that_cannot_be_written_is_told_in_one_sentence() -> None:
    train("a")
    train("b")
    with pytest.raises(ClearheadError, match=r"^runs cannot be written: .*; choose another `out`$"):
        ch.compare_runs("a", "b", out="runs")


def test_a_run_of_one_evaluation_is_drawn_as_a_dot() -> None:
    drawing = chart("loss", "Loss", "nats", [Series("a", ((0.0, 2.0),))])
    assert re.search(r'<path class="color0" d="M([\d.]+,[\d.]+) \1"/>', drawing)


def test_what_a_run_wrote_does_nothing_on_the_page() -> None:
    run = train("a")
    lines = run.metrics.read_text(encoding="utf-8")
    run.metrics.write_text(
        lines + '{"kind": "sample", "step": 9, "text": "<script>alert(1)</script>"}\n', encoding="utf-8"
    )
    train("b")
    page = ch.compare_runs("a", "b").page.read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
