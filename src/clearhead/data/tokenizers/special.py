"""Which tokens of somebody else's tokenizer end a text, fill up rows, stand for what is masked, or frame every text."""

from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import models, processors

from clearhead.files import read_json

END_OF_DOCUMENT = "<|endoftext|>"
PAD, MASK = "<|pad|>", "[MASK]"
ENDS = (END_OF_DOCUMENT, "<|end_of_text|>", "</s>", "<eos>")  # what the ends of other people's texts are called
PADS, MASKS = (PAD, "<pad>", "[PAD]"), (MASK, "<mask>")
MAX_BYTES = 4 << 20  # of the files beside a tokenizer.json; the largest published ones have 1.2 MB


def named_tokens(paths: Sequence[Path]) -> list[dict[str, object]]:
    """What the JSON files beside a tokenizer say; nothing, where one cannot be read."""
    contents = []
    for path in paths:
        try:
            content = read_json(path, MAX_BYTES)
        except (OSError, ValueError):
            continue
        if isinstance(content, dict):
            contents.append(content)
    return contents


def special_id(
    library: tokenizers.Tokenizer,
    beside: Sequence[dict[str, object]],
    key: str,
    known: int | None,
    usual: Sequence[str],
) -> int | None:
    """The special token that the files beside the tokenizer name, else the known one, else one with a usual name."""
    named = next(filter(None, (_token_content(content, key) for content in beside)), None)
    if named is None and known is not None and known < library.get_vocab_size():
        named = library.id_to_token(known)
    if named is not None and library.token_to_id(named) is not None:
        library.add_special_tokens([tokenizers.AddedToken(named, special=True)])  # where it was a plain one
        return library.token_to_id(named)
    special = {token.content: i for i, token in library.get_added_tokens_decoder().items() if token.special}
    return next((special[token] for token in usual if token in special), None)


def _token_content(content: dict[str, object], key: str) -> str | None:
    """The token under the key, which is a string or an object with its content."""
    token = content.get(key)
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def frame_of(library: tokenizers.Tokenizer) -> tuple[Sequence[int], Sequence[int]]:
    """The ids that the library puts before and after every text by itself.

    Raises:
        ValueError: they cannot be; the end of a sentence.
    """
    if library.post_processor is None:
        return (), ()
    text = tokenizers.Tokenizer(models.WordLevel({"a": 0})).encode("a")
    whole = library.post_processor.process(text)
    if 0 not in whole.special_tokens_mask:
        raise ValueError("puts tokens around a text and leaves the text itself out")
    index = whole.special_tokens_mask.index(0)
    before, after = whole.ids[:index], whole.ids[index + 1 :]
    if any(token >= library.get_vocab_size() or library.id_to_token(token) is None for token in (*before, *after)):
        raise ValueError("puts tokens around a text that are not in its vocabulary")
    return before, after


def template(
    library: tokenizers.Tokenizer, beginning: Sequence[int], ending: Sequence[int]
) -> processors.TemplateProcessing:
    """What makes the library put these ids around every text.

    A template is written in a small language, in which `$` and `:` mean something: a token that has them goes by its
    number there.
    """
    tokens = {i: library.id_to_token(i) for i in (*beginning, *ending)}
    names = {i: token if token and not set("$: ") & set(token) else f"token-{i}" for i, token in tokens.items()}
    special = [{"id": names[i], "ids": [i], "tokens": [token]} for i, token in tokens.items()]
    before, after = ([names[i] for i in ids] for ids in (beginning, ending))
    return processors.TemplateProcessing(single=[*before, "$A", *after], special_tokens=special)


def specials(end: bool, pad: bool, mask: bool) -> list[tokenizers.AddedToken]:
    """The special tokens of a new tokenizer."""
    chosen = ((END_OF_DOCUMENT, end), (PAD, pad), (MASK, mask))
    return [tokenizers.AddedToken(token, special=True) for token, is_chosen in chosen if is_chosen]
