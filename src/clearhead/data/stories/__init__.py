"""The built-in corpus `stories`: children's stories from a probabilistic grammar whose entropy is known exactly.

Stories are independent draws from the grammar, each followed by a blank line. No text has two derivations (proved by
`unambiguous`), so a text's probability is its derivation's, and the entropy rate is the entropy of one story over its
expected length: the loss, in nats per character, that no model of any size can beat on average.

    plots.txt, words.txt   the grammar, as data: to add a plot or a word, edit these (then raise VERSION)
    lexicon, notation      read them
    grammar                what a grammar is, and how to draw from it
    entropy                its exact entropy and expected length
    parse                  the walk of a reader over the rules; the probability of a given text
    knowledge, sites,      where sentences begin, and what is known there
    sentences              which sentences some story holds, and what their words refer to
    reading                what share of sampled stories and sentences the grammar accepts
    unambiguous            the proof that the entropy of derivations is that of texts

The same seed gives the same characters for ever, for any VERSION. Nothing is read or computed at import.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from importlib import resources

from clearhead.data.grammar_score import GrammarScore
from clearhead.data.stories import parse, reading
from clearhead.data.stories.entropy import measure
from clearhead.data.stories.grammar import Alternatives, Draw, FixedText, Grammar, Mention, RuleCall, Template, texts
from clearhead.data.stories.lexicon import read_categories
from clearhead.data.stories.notation import read_grammar
from clearhead.data.stories.reading import SEPARATOR
from clearhead.data.stories.sentences import Sentences

__all__ = [
    "MAX_CHARACTERS",
    "SEPARATOR",
    "VERSION",
    "english",
    "entropy_per_character",
    "log_probability",
    "n_rules",
    "n_words",
    "score",
    "stories",
    "text",
]

MAX_CHARACTERS = 1_400  # characters; of 15,000 stories the longest has 1,357
VERSION = 1  # raised whenever a change to the grammar or the sampler changes the text


@functools.cache
def english() -> Grammar:
    """The grammar of the stories, read once."""
    folder = resources.files(__name__)
    words, plots = ((folder / name).read_text(encoding="utf-8") for name in ("words.txt", "plots.txt"))
    return read_grammar(plots, read_categories(words))


def stories(seed: int = 1) -> Iterator[str]:
    """Independent stories without end, each with the blank line that follows it."""
    return (story for story, _ in texts(english(), seed))


def text(n_characters: int = 1_000_000, seed: int = 1) -> str:
    """Whole stories, each followed by a blank line: as many as it takes to reach `n_characters`.

    A longer text of the same seed begins with the shorter one.
    """
    pieces: list[str] = []
    length = 0
    endless = stories(seed)
    while length < n_characters:
        pieces.append(next(endless))
        length += len(pieces[-1])
    return "".join(pieces)


@functools.cache
def entropy_per_character() -> float:
    """The exact entropy rate of the text, in nats per character: E[-ln P(story)] / E[characters of a story]."""
    exact = measure(english())
    return exact.entropy / exact.characters


def log_probability(text: str) -> float:
    """ln P, in nats, of a sequence of whole stories, summed over all derivations; -inf for any other text."""
    ends = [match.end() for match in re.finditer(SEPARATOR, text)]
    if text[(ends or [0])[-1] :]:
        return float("-inf")
    return sum(parse.log_probability(english(), text[a:b]) for a, b in zip([0, *ends], ends, strict=False))


def score(texts: Sequence[str]) -> GrammarScore:
    """What the grammar says of sampled stories, one each, with the blank line that ends it if it is whole."""
    return reading.score(_sentences(), texts)


@functools.cache
def _sentences() -> Sentences:
    return Sentences(english())


def n_rules() -> int:
    """The number of rules in a grammarian's sense: the named rules' alternatives. Inline choices are not counted."""
    return sum(len(rule.body.options) for rule in english().rules.values())


def n_words() -> int:
    """The number of distinct words, without regard to capitals, that the rules can write."""
    rules = english().rules.values()
    return len({word for rule in rules for string in _strings((rule.body,)) for word in _words(string)})


def _words(string: str) -> list[str]:
    return re.findall(r"[a-z]+(?:'[a-z]+)?", string.lower())


def _strings(items: Template) -> Iterator[str]:
    for item in items:
        match item:
            case FixedText(fixed):
                yield fixed
            case Mention(_, strings) | Draw(_, strings, _):
                yield from strings
            case Alternatives(_, options):
                for option in options:
                    yield from _strings(option)
            case RuleCall():
                pass
