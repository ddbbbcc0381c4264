"""Texts of the held-out data that a person may type behind a command, as they are."""

from collections.abc import Iterable, Iterator

from clearhead.inference.filling import MASKED

MOST = 60  # characters
MANY_WORDS = 7
SPECIAL = frozenset("'\"\\`$!%")  # signs that some shell reads even within quotes


def easily_typed(texts: Iterable[str]) -> str | None:
    """The first short text that every shell takes within quotes, and that no parser takes for a flag."""
    for text in map(str.strip, texts):
        if 0 < len(text) <= MOST and text.isprintable() and not SPECIAL & set(text) and not text.startswith("-"):
            return text
    return None


def gaps(text: str) -> Iterator[str]:
    """The beginnings of its lines, a word in the middle masked; the first line, which may be cut off, comes last."""
    first, *lines = text.split("\n")
    for line in (*lines, first):
        terms = line.split()[:MANY_WORDS]
        if len(terms) > 2 and MASKED not in line:
            terms[len(terms) // 2] = MASKED
            yield " ".join(terms)
