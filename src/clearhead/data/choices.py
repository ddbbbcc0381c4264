"""What the library decides about a text, each with the sentence that says why."""

import numpy as np

from clearhead.config import DataConfig
from clearhead.data.documents import Source
from clearhead.data.survey import Survey, sample
from clearhead.data.tokenizers import Tokenizer

_CHAR_ALPHABET = 256  # auto: characters are the tokens while they are few...
_CHAR_TEXT = 5_000_000  # ...and the text is too short to learn pieces of words from


def choose_tokenizer(source: Source, found: Survey, config: DataConfig) -> tuple[Tokenizer, str]:
    """The tokenizer that the config asks for (auto, char or bpe), made from the text."""
    few, short = len(found.alphabet) <= _CHAR_ALPHABET, found.characters <= _CHAR_TEXT
    several = len(found.lengths) > 1
    made_of = f"{found.characters:,} characters, {len(found.alphabet):,} of them different"
    if config.tokenizer == "char" or (config.tokenizer == "auto" and few and short):
        why = "as asked" if config.tokenizer == "char" else "enough for a text this small"
        return Tokenizer.characters(found.alphabet, end=several), f"Tokens are characters, {why}: {made_of}."
    bpe = Tokenizer.train_bpe(sample(source, found.characters), config.bpe_vocab_size, end=several)
    why = "as asked" if config.tokenizer == "bpe" else ("for a text this long" if few else "for so large an alphabet")
    return bpe, f"Tokens are pieces of words (a byte-level BPE of {bpe.vocab_size:,}), {why}: {made_of}."


def notes_on_documents(found: Survey, cut: int, tokenizer: Tokenizer) -> list[str]:
    """Where the cut fell among several documents, and what marks their ends."""
    if len(found.lengths) == 1:
        return []
    ends = np.cumsum(found.lengths)
    before = int(np.searchsorted(ends, cut, side="right"))  # documents that are whole before the cut
    held_out = f"{1 - cut / found.characters:.1%} of the text is held out"
    notes = [f"{len(ends):,} documents, the last {len(ends) - before:,} for validation: {held_out}."]
    if cut not in ends:
        notes = [f"{len(ends):,} documents, too uneven to cut between two: document {before + 1:,} is on both sides."]
    if tokenizer.end_of_document is None:
        notes.append("The tokenizer has no token for the end of a document, so nothing marks where one begins.")
    return notes


def notes_on_loss(source: Source, found: Survey, tokenizer: Tokenizer) -> list[str]:
    """A stranger's tokenizer may fold case or spaces; then what the model writes cannot look like the text."""
    text = next(sample(source, found.characters))
    back = tokenizer.decode(tokenizer.encode(text))
    if back == text:
        return []
    at = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), min(len(text), len(back)))
    here = slice(max(0, at - 10), at + 10)
    return [f"The tokenizer does not give a text back as it was: {text[here]!r} becomes {back[here]!r}."]
