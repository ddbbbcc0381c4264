"""What bytes each token writes, by the tokenizer's own decoder, and held against it before they are used."""

import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import tokenizers

from clearhead.data.tokenizers.characters import state_of
from clearhead.errors import DataError

BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
TRIALS, TRIAL_TOKENS = 32, 24

Write = Callable[[str], bytes]


def token_bytes(library: tokenizers.Tokenizer, decode: Callable[[list[int]], str]) -> list[bytes | None]:
    """The bytes of each id, None for a special token and for an id that is none.

    A text's bytes are those of its tokens, one after the other; some decoders leave out a space at its beginning.

    Args:
        library: the tokenizer.
        decode: ids to text, specials left out.

    Raises:
        DataError: the decoder is of a kind whose tokens have no bytes of their own.
    """
    write = _writer(library)
    special = {i for i, token in library.get_added_tokens_decoder().items() if token.special}
    vocab = library.get_vocab(with_added_tokens=True)
    table: list[bytes | None] = [None] * (max(vocab.values()) + 1)
    for token, number in vocab.items():
        if number not in special:
            table[number] = write(token)
    _compare(table, decode)
    return table


def _writer(library: tokenizers.Tokenizer) -> Write:
    parts = _parts(state_of(library.decoder))
    kinds = {part["type"] for part in parts}
    if not parts or kinds & {"WordPiece", "BPEDecoder", "CTC"}:  # a space depends on the tokens around it
        raise _unsuitable()
    if "ByteLevel" in kinds:
        numbers = _byte_alphabet()
        return lambda token: (
            bytes(numbers[c] for c in token) if all(c in numbers for c in token) else token.encode("utf-8")
        )
    spaces = [part["replacement"] for part in parts if part["type"] == "Metaspace"]
    replaced = [(part["pattern"].get("String"), part["content"]) for part in parts if part["type"] == "Replace"]
    has_bytes = "ByteFallback" in kinds

    def write(token: str) -> bytes:
        byte = BYTE.fullmatch(token) if has_bytes else None
        if byte:
            return bytes([int(byte[1], 16)])
        for space in spaces:
            token = token.replace(space, " ")
        for pattern, content in replaced:
            token = token.replace(pattern, content) if pattern else token
        return token.encode("utf-8")

    return write


def _parts(state: Any) -> list[Mapping[str, Any]]:
    """The components of a decoder."""
    if state is None:
        return []
    return [part for inner in state["decoders"] for part in _parts(inner)] if state["type"] == "Sequence" else [state]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: those that can be seen stand for themselves, others for numbers from 256 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


def _compare(table: list[bytes | None], decode: Callable[[list[int]], str]) -> None:
    """Hold random texts against the decoder.

    Raises:
        DataError: one differs.
    """
    plain = [number for number, written in enumerate(table) if written is not None and _is_text(written)]
    draw = random.Random(0)
    for _ in range(TRIALS if plain else 0):
        ids = draw.choices(plain, k=TRIAL_TOKENS)
        whole = b"".join(table[number] or b"" for number in ids).decode("utf-8")
        if decode(ids).removeprefix(" ") != whole.removeprefix(" "):
            raise _unsuitable()


def _is_text(written: bytes) -> bool:
    """Whether these are whole characters: of others decoders make what they like."""
    try:
        written.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _unsuitable() -> DataError:
    return DataError(
        "the run's tokenizer writes tokens in a way that depends on their neighbors, so its texts cannot be held to a "
        "form; take a run with another tokenizer"
    )
