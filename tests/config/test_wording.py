"""Numbers and articles in sentences, and texts that end with a whole word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.wording import counted, in_bytes, whole_words, with_article


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "file", "0 files"),
        (1, "file", "1 file"),
        (1.0, "minute", "1 minute"),
        (2, "file", "2 files"),
        (0.5, "minute", "0.5 minutes"),
        (1_200, "step", "1,200 steps"),
    ],
)
def test_a_number_and_its_noun(number: float, noun: str, text: str) -> None:
    assert counted(number, noun) == text


def test_bytes_have_a_unit() -> None:
    texts = [in_bytes(number) for number in (0, 1, 1023, 1536, 3 << 20, 5 << 30, 3 << 40)]
    assert texts == ["0 bytes", "1 byte", "1,023 bytes", "1.5 kB", "3.0 MB", "5.0 GB", "3.0 TB"]


@pytest.mark.parametrize(("noun", "text"), [("decoder", "a decoder"), ("encoder", "an encoder"), ("Adam", "an Adam")])
def test_an_article(noun: str, text: str) -> None:
    assert with_article(noun) == text


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("Once upon a ti", "Once upon a"),
        ("He said\nnothi", "He said\nnothing"[:7]),
        ("All is well.", "All is well."),
        ("All is well. ", "All is well. "),
        ('"Yes!"', '"Yes!"'),
        ("Once", "Once"),
        ("", ""),
        ("从前有一个国王他有三个儿子" * 9, "从前有一个国王他有三个儿子" * 9),
    ],
)
def test_a_text_ends_with_a_whole_word(text: str, whole: str) -> None:
    assert whole_words(text) == whole


@given(text=st.text("ab. \n", max_size=60), rest=st.text("ab", min_size=1, max_size=9))
def test_only_the_last_word_is_ever_left_out(text: str, rest: str) -> None:
    whole = whole_words(text + rest)
    assert (text + rest).startswith(whole)
    assert " " not in (text + rest)[len(whole) :].strip()
