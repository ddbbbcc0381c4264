"""Words in sentences: '1 minute', '2 minutes', 'an encoder_decoder'; and texts that end with a whole one."""

import os

VOWELS = "aeiou"
BYTES = ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))
MAX_WORD = 30  # characters; what is longer is a text without spaces


def counted(number: float, noun: str) -> str:
    """A number and its noun, in the plural unless the number is 1: '1 file', '1,200 files', '1.5 minutes'."""
    digits = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{digits} {noun}" if number == 1 else f"{digits} {noun}s"


def in_bytes(number: int) -> str:
    """A number of bytes with its unit: '384 bytes', '4.9 kB', '512.0 MB'; 1 kB is 1024 bytes."""
    for unit, name in BYTES:
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return counted(number, "byte")


def listed(names: list[str], shown: int = 3) -> str:
    """The first of them, and how many more there are: 'a, b, c and 2 more'."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def call(function: str, *arguments: object, **keywords: object) -> str:
    """A call as a sentence has it: ready to be pasted into Python. The command turns it into a command line."""
    values = [_value(argument) for argument in arguments]
    values += [f"{name}={_value(argument)}" for name, argument in keywords.items()]
    return f"`ch.{function}({', '.join(values)})`"


def _value(argument: object) -> str:
    value = os.fspath(argument) if isinstance(argument, os.PathLike) else argument
    return repr(value).replace("`", r"\x60")  # only in a text, where it means the same


def with_article(noun: str) -> str:
    """A noun behind 'a', or behind 'an' where it begins with a vowel."""
    return f"an {noun}" if noun[:1].lower() in VOWELS else f"a {noun}"


def whole_words(text: str) -> str:
    """The text without a word that its end may cut off; as it is where it ends with a sign, or has no spaces."""
    if not text[-1:].isalnum():
        return text
    cut = text[: len(text) - len(text.split()[-1])]
    return cut.rstrip() if cut.strip() and len(text) - len(cut) <= MAX_WORD else text
