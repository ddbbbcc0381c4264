"""tokenizer.json files that break the library that reads them, take its time, or take its memory."""

import base64
import json
import struct
from collections.abc import Callable
from typing import Any

from strangers_tokenizers import charsmap, state_of

Json = dict[str, Any]


def _with(kind: str, **parts: object) -> Json:
    return state_of(kind) | parts


def _model(kind: str, **changed: object) -> Json:
    state = state_of(kind)
    return state | {"model": state["model"] | changed}


def _precompiled(content: str) -> Json:
    return _with("t5", normalizer={"type": "Precompiled", "precompiled_charsmap": content})


def replace(pattern: str, content: str, kind: str = "String") -> Json:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def several(part: str, parts: list[Json]) -> Json:
    return {"type": "Sequence", part: parts}


def _added(content: str, **changed: object) -> Json:
    rest = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    return {"id": 330, "content": content, **rest, **changed}


def _template(single: list[str], ids: list[int]) -> Json:
    pieces = [
        {"Sequence": {"id": piece, "type_id": 0}}
        if piece in ("A", "B")
        else {"SpecialToken": {"id": piece, "type_id": 0}}
        for piece in single
    ]
    special = {"<s>": {"id": "<s>", "ids": ids, "tokens": ["<s>"] * len(ids)}}
    return {"type": "TemplateProcessing", "single": pieces, "pair": [*pieces, *pieces], "special_tokens": special}


def _trie(units: list[int], texts: bytes = b"a\0") -> str:
    trie = struct.pack(f"<{len(units)}I", *units)
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + texts).decode()


GOOD_MAP = base64.b64decode(charsmap({"a": "b"}))
WORD_PIECE = {token: n for token, n in state_of("bert")["model"]["vocab"].items() if token != "[UNK]"}

NAMED: dict[str, Callable[[], Json]] = {
    "an empty charsmap": lambda: _precompiled(""),
    "a charsmap of one byte": lambda: _precompiled("AA=="),
    "a charsmap that promises too much": lambda: _precompiled(
        base64.b64encode(struct.pack("<I", 2**31) + GOOD_MAP[4:]).decode()
    ),
    "a charsmap cut off": lambda: _precompiled(base64.b64encode(GOOD_MAP[:150]).decode()),
    "a charsmap that points outside": lambda: _precompiled(_trie([(2**20) << 10] + [0] * 255)),
    "a charsmap whose text lies outside": lambda: _precompiled(
        _trie([0] * 97 + [0x100 << 10 | 1 << 8 | 97] + [0] * 158 + [9_999] + [0] * 255)
    ),
    "a catastrophic regex and a normalized token": lambda: _with(
        "gpt2", normalizer=replace("(a|aa)+$", "x", "Regex"), added_tokens=[_added("a" * 60 + "b")]
    ),
    "a template that begins with sequence B": lambda: _with("llama2", post_processor=_template(["B", "A"], [1])),
    "Replace of nothing, as a string": lambda: _with("gpt2", normalizer=replace("", "x")),
    "Replace of nothing, as a regex": lambda: _with("gpt2", normalizer=replace("", "x", "Regex")),
    "Replace of nothing in the decoder": lambda: _with("gpt2", decoder=replace("", "x")),
    "Prepend of nothing": lambda: _with("llama2", normalizer={"type": "Prepend", "prepend": ""}),
    "pieces of length 0": lambda: _with("gpt2", pre_tokenizer={"type": "FixedLength", "length": 0}),
    "a catastrophic Split": lambda: _with(
        "gpt2",
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": "(a|aa)+$"},
            "behavior": "Isolated",
            "invert": False,
        },
    ),
    "a catastrophic Split of what no sample holds": lambda: _with(
        "gpt2",
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": r"(\p{Cyrillic}|\p{Cyrillic}\p{Cyrillic})+$"},
            "behavior": "Isolated",
            "invert": False,
        },
    ),
    "a catastrophic Replace of what no sample holds": lambda: _with(
        "gpt2", normalizer=replace(r"(\p{Cyrillic}|\p{Cyrillic}\p{Cyrillic})+$", "x", "Regex")
    ),
    "WordPiece without an unknown token": lambda: _model("bert", vocab=WORD_PIECE),
    "thirty doublings": lambda: _with("gpt2", normalizer=several("normalizers", [replace("a", "aa")] * 30)),
    "a decoder that doubles": lambda: _with("gpt2", decoder=several("decoders", [replace("a", "aa")] * 40)),
    "a normalizer that makes a letter a book": lambda: _with("gpt2", normalizer=replace("a", "b" * 300_000)),
    "a template with a hundred thousand ids": lambda: _with(
        "llama2", post_processor=_template(["<s>", "A"], [1] * 100_000)
    ),
    "a template with a hundred thousand pieces": lambda: _with(
        "llama2", post_processor=_template(["<s>"] * 100_000 + ["A"], [1])
    ),
    "quadratic WordPiece": lambda: _model("bert", max_input_chars_per_word=10**9),
    "ten thousand normalizers": lambda: _with("gpt2", normalizer=several("normalizers", [{"type": "NFKC"}] * 10_000)),
    "depth": lambda: _with("gpt2", normalizer=_deep(120)),
    "an added token of which nothing is left": lambda: _with(
        "bert", added_tokens=[_added("\u200d", id=1, single_word=True)]
    ),
    "two tokens of one number": lambda: _model("bert", vocab=state_of("bert")["model"]["vocab"] | {"[UNK]": 2}),
    "a token of number four billion": lambda: _model("own_characters", vocab={"a": 0, "b": 2**32 - 1}),
}


def _deep(depth: int) -> Json:
    part: Json = {"type": "NFC"}
    for _ in range(depth):
        part = several("normalizers", [part])
    return part


def as_text(state: Json) -> str:
    return json.dumps(state, ensure_ascii=False)
