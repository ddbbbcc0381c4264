"""Pages with scripts and data: the policy knows each script, and no text becomes more than text."""

import json
import math
import re
from base64 import b64encode
from hashlib import sha256

import pytest
from hostile_texts import hostile_texts
from page_reader import Page

from clearhead.pages import CONTROLS, document, printable

SCRIPTS = ('"use strict";\nconst label = "ä < 3 && b > 2";\n', "document.title += label;\n")
HOSTILE = hostile_texts()


def policy_of(page: str) -> str:
    return next(
        content
        for tag, attributes in Page(page).elements
        if tag == "meta"
        and attributes.get("http-equiv") == "Content-Security-Policy"
        and (content := attributes["content"])
    )


def scripts_of(page: str) -> list[tuple[str, str]]:
    """Attributes and content of each script, where an HTML parser ends it."""
    return re.findall(r"<script([^>]*)>(.*?)</script", page, re.DOTALL | re.IGNORECASE)


def test_a_page_without_scripts_allows_none() -> None:
    page = document("title", "verdict", "")
    assert "script" not in policy_of(page)
    assert scripts_of(page) == []


def test_the_policy_allows_the_scripts_of_the_page_and_no_other() -> None:
    page = document("title", "verdict", "<p>main</p>", scripts=SCRIPTS, data={})
    blocks = scripts_of(page)
    assert [content for attributes, content in blocks if not attributes] == list(SCRIPTS)
    directives = dict(directive.strip().split(" ", 1) for directive in policy_of(page).split(";"))
    digests = [b64encode(sha256(script.encode()).digest()).decode() for script in SCRIPTS]
    assert directives["script-src"].split() == [f"'sha256-{digest}'" for digest in digests]
    assert directives["default-src"] == "'none'"
    assert "unsafe" not in directives["script-src"]
    assert page.index("<p>main</p>") < page.index(SCRIPTS[0]), "scripts run when the page is read"


@pytest.mark.parametrize("script", ["x = '</SCRIPT>'", "<!-- ", "a\r\nb", "'\0'", "'\ud800'"])
def test_a_script_that_html_would_change_is_refused(script: str) -> None:
    with pytest.raises(AssertionError, match="HTML would change"):
        document("title", "verdict", "", scripts=[script])


def test_data_arrives_as_printable_text() -> None:
    data = {"texts": HOSTILE, "by text": dict.fromkeys(HOSTILE, 1), "numbers": [1, 0.5, None, True], "pair": ("<", ">")}
    page = document("title", "verdict", "", data=data)
    [(attributes, content)] = scripts_of(page)
    assert attributes == ' type="application/json" id="data"'
    assert not set(content) & set("<>&\u2028\u2029")
    page.encode("utf-8")
    arrived = json.loads(content)
    assert arrived["texts"] == [printable(text) for text in HOSTILE]
    assert arrived["by text"].keys() == {printable(text) for text in HOSTILE}
    assert arrived["numbers"] == data["numbers"]
    assert arrived["pair"] == ["<", ">"]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_json_does_not_know_is_no_data(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        document("title", "verdict", "", data={"x": [number]})


def test_500_hostile_texts_as_title_verdict_and_data() -> None:
    plain = [tag for tag, _ in Page(document("t", "v", "", scripts=SCRIPTS, data={"x": ""})).elements]
    assert len(HOSTILE) == 500
    for text in HOSTILE:
        page = document(text, text, "", scripts=SCRIPTS, data={"x": text})
        page.encode("utf-8")
        parsed = Page(page)
        assert [tag for tag, _ in parsed.elements] == plain
        assert printable(text) in parsed.text
        assert not {ord(sign) for sign in page} & (set(CONTROLS) - {0x09, 0x0A})
