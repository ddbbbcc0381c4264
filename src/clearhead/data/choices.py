"""What the library decides about a text, each with a note that says why."""

import numpy as np

from clearhead.config import DataConfig
from clearhead.data.documents import Source
from clearhead.data.survey import Survey, sample
from clearhead.data.tokenizers import Tokenizer

_CHAR_ALPHABET = 256  # auto: characters are the tokens where they are few...
_CHAR_BYTES = 2**17  # ...and the text is too short to train a BPE on
_BYTES_PER_TOKEN = 192  # of text for each entry of a vocabulary: benchmarks/results/vocabulary.md
_VOCAB_SIZES = 512, 8192  # the smallest and the largest that is chosen


def suggested_vocab_size(n_bytes: int) -> int:
    """The vocabulary that a BPE should learn from so many bytes of text, a multiple of 64.

    A larger one makes the text shorter, so that a model reads more of it in the same time, as long as each token occurs
    often enough to be learned.
    """
    smallest, largest = _VOCAB_SIZES
    return min(largest, max(smallest, n_bytes // _BYTES_PER_TOKEN // 64 * 64))


def choose_tokenizer(
    source: Source, survey: Survey, config: DataConfig, *, masks: bool = False
) -> tuple[Tokenizer, str]:
    """The tokenizer that the config asks for (auto, char or bpe), made from the text; a clause that says why.

    With `masks` it has a mask and a pad, and auto never means characters: those are guessed from their neighbors.
    """
    n_different, several, size = len(survey.alphabet), len(survey.lengths) > 1, config.bpe_vocab_size
    few, short = n_different <= _CHAR_ALPHABET, survey.n_bytes < _CHAR_BYTES
    reason = None if config.tokenizer == "auto" else f"data.tokenizer is {config.tokenizer}"
    if config.tokenizer == "char" or (reason is None and few and short and not masks and size is None):
        why = reason or f"the text is short and has only {n_different:,} of them"
        tokenizer = Tokenizer.characters(survey.alphabet, end=several, pad=masks, mask=masks)
        return tokenizer, f"tokens: characters, because {why}"
    pieces, size = sample(source, survey.characters), size or suggested_vocab_size(survey.n_bytes)
    bpe = Tokenizer.train_bpe(pieces, size, end=several, pad=masks, mask=masks)
    why = (
        "the text is long enough to learn them" if few else f"the text has many different characters ({n_different:,})"
    )
    why = reason or ("there are words to fill in" if masks else why)
    kind = f"byte-level BPE, {bpe.vocab_size:,} tokens trained on the text"
    return bpe, f"tokens: {kind}, because {why}"


def notes_on_documents(survey: Survey, cut: int, tokenizer: Tokenizer) -> list[str]:
    """Where the cut fell among several documents, and what marks their ends."""
    if len(survey.lengths) == 1:
        return []
    ends = np.cumsum(survey.lengths)
    before = int(np.searchsorted(ends, cut, side="right"))  # documents that are whole before the cut
    held_out = f"{1 - cut / survey.characters:.1%} of the text is held out"
    notes = [f"{len(ends):,} documents, the last {len(ends) - before:,} for validation: {held_out}"]
    if cut not in ends:
        notes = [f"{len(ends):,} documents, too uneven to cut between two: document {before + 1:,} is on both sides"]
    if tokenizer.end_of_document is None:
        notes.append("the tokenizer has no token for the end of a document, so nothing marks where one begins")
    return notes


def notes_on_lossy_tokenizer(source: Source, survey: Survey, tokenizer: Tokenizer) -> list[str]:
    """Some tokenizers fold case or spaces; then generated text cannot match the original's casing or spacing."""
    return notes_on_round_trip(next(sample(source, survey.characters)), tokenizer)


def notes_on_round_trip(text: str, tokenizer: Tokenizer) -> list[str]:
    """Where decoding does not undo encoding, if anywhere."""
    back = tokenizer.decode(tokenizer.encode(text))
    if back == text:
        return []
    at = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), min(len(text), len(back)))
    here = slice(max(0, at - 10), at + 10)
    return [f"The tokenizer does not give a text back as it was: {text[here]!r} becomes {back[here]!r}."]
