"""The report page: complete, well-formed, safe with any text, and it asks nobody for anything."""

import re

import pytest
from page_reader import Page

from clearhead.inspection import Curve, Sample, TrainingReport, render

HOSTILE = "<script>alert(1)</script>\" onload='x' & ]]> \x00\x1b[31m \ud800 \r\n end"


def a_report(text: str = "Once upon a time.") -> TrainingReport:
    curve = Curve(((0, 4.0), (1, 3.0), (2, 2.5)), ((0, 4.1), (2, 2.6)), 0.65)
    samples = (Sample(1, "qx"), Sample(2, text))
    return TrainingReport(text, text, ((text, text), ("Parameters", "813,440")), curve, samples, text)


@pytest.mark.parametrize("text", ["Once upon a time.", HOSTILE, ""])
def test_the_page_is_well_formed_whatever_it_says(text: str) -> None:
    page = render(a_report(text))
    page.encode("utf-8")
    parsed = Page(page)
    assert "script" not in {tag for tag, _ in parsed.elements}
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
    assert not set(map(chr, range(32))) - set("\t\n") & set(page)


def test_hostile_text_is_shown_as_it_was_given() -> None:
    parsed = Page(render(a_report(HOSTILE)))
    assert parsed.text.count("<script>alert(1)</script>\" onload='x' & ]]> ␀␛[31m ? \n end") >= 5


def test_the_page_asks_nobody() -> None:
    page = render(a_report())
    outside = set(re.findall(r"(?:https?:)?//[^\s\"'<>)]+", page)) - {
        "http://www.w3.org/2000/svg"
    }  # a name, not a call
    assert outside == set()
    assert "url(" not in page
    assert "@import" not in page
    policies = [a["content"] for tag, a in Page(page).elements if tag == "meta" and "http-equiv" in a]
    assert len(policies) == 1
    assert "default-src 'none'" in (policies[0] or "")
    for tag, attributes in Page(page).elements:
        assert "src" not in attributes
        assert (tag, attributes.get("href")) in {(tag, None), ("link", "data:,")}


def test_the_page_can_be_read_without_the_picture() -> None:
    page = Page(render(a_report()))
    tags = [tag for tag, _ in page.elements]
    assert dict(page.elements)["html"]["lang"] == "en"
    assert tags.count("h1") == 1
    assert dict(page.elements)["svg"]["role"] == "img"
    for cell in ("4.1000", "2.6000", "2.7500"):  # validation losses; the training steps' mean since the row before
        assert cell in page.text
    assert "Validation loss goes from 4.100 to 2.600" in page.text or "validation loss goes from 4.100" in page.text


def test_the_newest_sample_comes_first_and_the_way_in_order() -> None:
    samples = tuple(Sample(step, f"text of {step}") for step in (200, 100, 300))
    page = render(TrainingReport("t", "v", (), Curve(), samples))
    places = [page.index(f"text of {step}") for step in (300, 100, 200)]
    assert places == sorted(places)


def test_an_empty_run_has_a_page() -> None:
    Page(render(TrainingReport("", "", (), Curve())))


def test_a_long_run_has_a_short_page() -> None:
    curve = Curve(tuple((step, 2.0) for step in range(20_000)), tuple((step, 2.0) for step in range(0, 20_000, 10)))
    page = render(TrainingReport("t", "v", (), curve))
    assert len(page) < 300_000
    assert page.count("<tr>") <= 41
