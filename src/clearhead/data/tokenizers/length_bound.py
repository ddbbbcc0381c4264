"""How many bytes of a text a token stands for at most, so that a text that is far too long need not be encoded."""

from collections.abc import Iterator, Mapping

import tokenizers
from tokenizers import models, pre_tokenizers

from clearhead.data.tokenizers.characters import state_of

UNICODE_FORMS = {"NFC", "NFD", "NFKC", "NFKD"}
MAX_COMPOSED = 8  # bytes that such a form makes one of: up to 4 characters of 4 bytes become a character of 2 or more
KEEP_VISIBLE = {"ByteLevel", "Prepend", "Strip", "Metaspace", "Whitespace", "WhitespaceSplit", "Digits"} | UNICODE_FORMS


def visible_bytes(text: str) -> int:
    """The bytes of a text in UTF-8, without white space, which templates and tokenizers may leave out."""
    return len("".join(text.split()).encode("utf-8", "ignore"))


def bytes_per_token(library: tokenizers.Tokenizer, *, is_character_level: bool = False) -> int | None:
    """The largest number of visible bytes that one token stands for; None where it may be any number.

    It may be where the tokenizer drops characters, or makes one unknown token of many.

    Args:
        library: a tokenizer.
        is_character_level: every token is one character, and texts with others are refused.
    """
    parts = [*_parts(state_of(library.normalizer)), *_parts(state_of(library.pre_tokenizer))]
    if not is_character_level and not (all(map(_keeps, parts)) and _knows_all_bytes(library, parts)):
        return None
    longest = max(len(token.encode("utf-8", "ignore")) for token in library.get_vocab(with_added_tokens=True))
    return longest * MAX_COMPOSED if any(part.get("type") in UNICODE_FORMS for part in parts) else longest


def _parts(state: object) -> Iterator[Mapping[str, object]]:
    """The components of a normalizer or pre-tokenizer that do something."""
    if not isinstance(state, Mapping):
        return
    if state.get("type") != "Sequence":
        yield state
        return
    for value in state.values():
        for part in value if isinstance(value, list) else ():
            yield from _parts(part)


def _keeps(part: Mapping[str, object]) -> bool:
    """Whether a component leaves no visible character out."""
    pattern, content = part.get("pattern"), part.get("content")
    if part.get("type") == "Replace":
        text = pattern.get("String") if isinstance(pattern, Mapping) else None
        return isinstance(text, str) and isinstance(content, str) and visible_bytes(text) <= visible_bytes(content)
    if part.get("type") in ("Split", "Punctuation"):
        return part.get("behavior") != "Removed" and not part.get("invert")
    return part.get("type") in KEEP_VISIBLE


def _knows_all_bytes(library: tokenizers.Tokenizer, parts: list[Mapping[str, object]]) -> bool:
    """Whether every byte has a token, so nothing is unknown."""
    vocabulary, model = library.get_vocab(with_added_tokens=False), library.model
    if isinstance(model, models.BPE) and any(part.get("type") == "ByteLevel" for part in parts):
        return vocabulary.keys() >= set(pre_tokenizers.ByteLevel.alphabet())
    if isinstance(model, models.BPE):
        falls_back = model.byte_fallback
    else:
        falls_back = isinstance(model, models.Unigram) and bool(state_of(model).get("byte_fallback"))
    return falls_back and vocabulary.keys() >= {f"<0x{byte:02X}>" for byte in range(256)}
