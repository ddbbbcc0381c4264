"""The tokenizers of sentence pairs: one for both sides, or one for each."""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from clearhead.config import DataConfig
from clearhead.data.choices import suggested_vocab_size
from clearhead.data.parallel.reading import Pair
from clearhead.data.survey import sample_stride
from clearhead.data.tokenizers import Tokenizer
from clearhead.errors import DataError

Tokenizers = tuple[Tokenizer, Tokenizer]  # the source's and the target's; the same object when joint


def load_tokenizers(config: DataConfig) -> Tokenizers | None:
    """The tokenizer.json that the config names, for both sides; None when it names none.

    Raises:
        DataError: it cannot be read.
    """
    if config.tokenizer in ("auto", "char", "bpe"):
        return None
    tokenizer = Tokenizer.load(Path(os.path.expanduser(config.tokenizer)))
    return tokenizer, tokenizer


def special_tokens(tokenizers: Tokenizers) -> tuple[int, int]:
    """The ids of the end and of the pad.

    Raises:
        DataError: there are none, they are the same, or those of source and target differ.
    """
    ends, pads = {tokenizer.end_of_document for tokenizer in tokenizers}, {tokenizer.pad for tokenizer in tokenizers}
    advice = "set `data.tokenizer` to auto, char, bpe or another tokenizer.json"
    for what, ids in (("end of a sentence, such as </s>", ends), ("filling up short rows, such as <pad>", pads)):
        if None in ids:
            raise DataError(f"the tokenizer has no special token for the {what}, which pairs need; {advice}")
        if len(ids) > 1:
            raise DataError(f"the tokenizers of source and target have different ids for the {what}; {advice}")
    (end,), (pad,) = ends, pads
    assert end is not None
    assert pad is not None
    if end == pad:
        raise DataError(f"the tokenizer has one token both for the end and for padding, and pairs need two; {advice}")
    return end, pad


def make_tokenizers(
    training: Callable[[], Iterator[Pair]], characters: int, alphabets: tuple[str, str], config: DataConfig
) -> tuple[Tokenizers, str]:
    """The tokenizers that the config asks for (auto, char or bpe), and a clause about them.

    Args:
        training: reads the pairs to learn pieces of words from.
        characters: on both sides of them, about.
        alphabets: the characters that must have a token when characters are the tokens.
        config: says which kind, how large, and whether one serves both sides.
    """
    joint = config.vocabulary == "joint"
    if config.tokenizer == "char":
        tokenizers = _characters(*alphabets, joint=joint)
        kind = "characters"
    else:
        size = config.bpe_vocab_size or suggested_vocab_size(characters)

        def train(*sides: str) -> Tokenizer:
            sample = islice(training(), 0, None, sample_stride(characters))
            texts = (getattr(pair, side) for pair in sample for side in sides)
            return Tokenizer.train_bpe(texts, size, end=True, pad=True, sentences=True)

        both = train("source", "target") if joint else None
        tokenizers = (both, both) if both else (train("source"), train("target"))
        kind = "byte-level BPE trained on the training pairs"
    source, target = (f"{tokenizer.vocab_size:,}" for tokenizer in tokenizers)
    sizes = f"{source} for both sides" if joint else f"{source} for the source and {target} for the target"
    return tokenizers, f"tokens: {kind}, {sizes}"


def _characters(source: str, target: str, *, joint: bool) -> Tokenizers:
    """The special tokens stand behind the characters, and must have one place on both sides.

    So the smaller alphabet gets as many characters of the other one as it has fewer: they are the likeliest of those
    that it has not seen, in a name for example.
    """
    if joint:
        both = Tokenizer.characters(source + target, end=True, pad=True)
        return both, both
    sides = []
    for own, other in ((source, target), (target, source)):
        strangers = sorted(set(other) - set(own))[: max(0, len(other) - len(own))]
        sides.append(Tokenizer.characters([*own, *strangers], end=True, pad=True))
    return sides[0], sides[1]
