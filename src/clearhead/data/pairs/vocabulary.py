"""The lexicon and the grammar that ship with the library, read once."""

import functools
from collections.abc import Mapping, Sequence
from importlib import resources

from clearhead.data.pairs.entries import Entry
from clearhead.data.pairs.grammar import PairCategory, read_grammar
from clearhead.data.pairs.lexicon import Lexicon, read_lexicon


@functools.cache
def lexicon() -> Lexicon:
    """All words."""
    return read_lexicon(*(_file(name) for name in ("nouns.txt", "verbs.txt", "adjectives.txt", "words.txt")))


@functools.cache
def sentences() -> PairCategory:
    """The category of all sentences."""
    return sentences_of(lexicon().categories)


def sentences_of(words: Mapping[str, Sequence[Entry]]) -> PairCategory:
    """The sentences that can be made of these words, listed by their categories: all of the lexicon's, or fewer."""
    return read_grammar(_file("grammar.txt"), words)


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
