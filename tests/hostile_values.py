"""Values that no file should hold where they are put, and the places in a tree of JSON to put them."""

import json
from typing import Any

Json = dict[str, Any]

REGEXES = [
    "",
    "^",
    "$",
    r"\b",
    "(?=a)",
    "(?<=a)",
    "a*",
    "(a|aa)+$",
    "(x+x+)+y",
    "(.*)*$",
    ".*.*.*.*=x",
    "(?i)(a+)+$",
    "[",
    r"\p{L}*",
    "((((a*)*)*)*)*b",
    "(?:a?){64}a{64}",
    r"\G",
    "(a{1,999}){1,999}",
    "(|a)+$",
    r"(\w+\s?)*$",
    r"(\s|\S)*!",
    "(?:é|e\u0301)+x",
    "a" * 3000,
    r"(?<x>a\g<x>?)",
    r"\K",
    r"(a)\1*$",
    "[^\\n]*",
    "(?:ab|abab)*c",
    "\\x{110000}",
    "(?m)^.*$",
]
TEXTS = ["", " ", "a", "▁", "\0", "aa" * 20, "x" * 20_000, "\ufdfa", "e\u0301", "##", "\u200d", "<s>"]
NUMBERS = [0, -1, 1, 2, 2**31 - 1, 2**32, 2**63, 2**64, 1e308, -1e308, 5e-324, 10**30, 0.5, True]
VALUES: list[Any] = [None, [], {}, [[]], {"type": "Sequence"}, *TEXTS, *NUMBERS]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def as_bytes(state: Any) -> bytes:
    """JSON, in which a lone surrogate stays an escape."""
    try:
        return json.dumps(state, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(state).encode()


def nodes(tree: Any) -> list[tuple[Any, Any]]:
    """Every place in a tree: its container and its key."""
    places: list[tuple[Any, Any]] = []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        places.append((tree, key))
        places += nodes(value)
    return places


def without_vocabulary(state: Json) -> Json:
    """The same places, but for the tokens, which are most of them."""
    rest = {key: value for key, value in state.items() if key != "model"}
    return rest | {"model": {k: v for k, v in state["model"].items() if k not in ("vocab", "merges")}}
