"""Tokens as labels: on one line, with spaces and line breaks that can be seen."""

import unicodedata

from clearhead.pages import one_line

SIGNS = {
    ord("\n"): "⏎",
    ord("\t"): "⇥",
    ord("\r"): "␍",
    ord(" "): "·",
    0xFFFE: "�",
    0xFFFF: "�",
}  # the last two cannot be in an SVG


def visible(token: str, limit: int | None = None) -> str:
    """A token's text as a label: "·" for a space, "⏎" for a line break, "…" for what is beyond `limit` characters.

    Nothing in it acts on a terminal; on a page it still goes through `pages.text`.
    """
    beginning = token if limit is None else token[: limit + 1]  # what lies beyond need not be looked at
    label = one_line(beginning.translate(SIGNS))
    return label if limit is None or len(label) <= limit else label[: limit - 1] + "…"


def columns(text: str) -> int:
    """How many columns of a terminal a label takes."""
    return sum(map(_width, text))


def in_columns(text: str, width: int, *, right: bool = False) -> str:
    """A label cut and filled up to exactly `width` columns of a terminal."""
    signs, taken = list[str](), 0
    is_long = columns(text) > width
    for sign in text:
        if taken + _width(sign) > width - is_long:
            break
        signs.append(sign)
        taken += _width(sign)
    label = "".join(signs) + "…" * is_long
    padding = " " * (width - taken - is_long)
    return padding + label if right else label + padding


def _width(sign: str) -> int:
    if unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1
