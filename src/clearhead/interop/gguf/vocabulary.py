"""A tokenizer.json as GGUF's own tokenizer, which is GPT-2's: pieces of bytes, and merges of two."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tokenizers import pre_tokenizers

from clearhead.errors import DataError, UsageError
from clearhead.options import option

NORMAL, CONTROL, UNUSED = 1, 3, 5  # GGUF's numbers of what a token is
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # spells each byte as a visible character
GPT2_CUTS = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
CHARACTER_CUTS = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
ADVICE = f"train with {option('data.tokenizer', 'bpe')}, or export to onnx or hf"


class Vocabulary(NamedTuple):
    """Tokens in the order of their ids, what each is, and which two become one, the first first."""

    tokens: list[str]
    kinds: list[int]
    merges: list[str]


def read_vocabulary(path: Path, size: int) -> Vocabulary:
    """The vocabulary of a tokenizer.json, filled up to the `size` that the model has.

    Raises:
        DataError: the file cannot be read.
        UsageError: it cuts texts as GGUF's tokenizer cannot.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        model, cuts = state["model"], state["pre_tokenizer"] or {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read as a tokenizer.json: {error}") from None
    kind = KINDS.get(model.get("type"))
    spelt = None if kind is None or state.get("normalizer") else kind(model["vocab"], cuts)
    if spelt is None:
        raise UsageError(
            f"GGUF cannot hold the tokenizer {path}: it is neither a byte-level BPE that splits texts like GPT-2's, "
            f"nor one of single characters of ASCII; {ADVICE}"
        )
    special = {token["content"]: token["id"] for token in state["added_tokens"]}
    held = dict.fromkeys(range(size), "") | {number: token for token, number in (spelt | special).items()}
    tokens = [held[number] or f"<unused {number}>".replace(" ", "_") for number in range(size)]
    kinds = [CONTROL if token in special else NORMAL if held[number] else UNUSED for number, token in enumerate(tokens)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges", ())]
    return Vocabulary(tokens, kinds, merges)


def _byte_pairs(vocab: dict[str, int], cuts: dict[str, object]) -> dict[str, int] | None:
    """Spelt as it is, if it is GPT-2's kind."""
    return vocab if cuts.items() >= GPT2_CUTS.items() else None


def _characters(vocab: dict[str, int], cuts: dict[str, object]) -> dict[str, int] | None:
    """Each character as the byte that it is in UTF-8; those beyond ASCII are several, which no merge here joins."""
    if cuts != CHARACTER_CUTS or any(len(token) != 1 or not token.isascii() for token in vocab):
        return None
    return {BYTES.pre_tokenize_str(token)[0][0]: number for token, number in vocab.items()}


KINDS: dict[str, Callable[[dict[str, int], dict[str, object]], dict[str, int] | None]] = {
    "BPE": _byte_pairs,
    "WordLevel": _characters,
}
