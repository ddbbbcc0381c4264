"""Reading German: whether the grammar can write a sentence.

The abstract grammar knows no language, and what writes German from a tree is code. So a sentence is read by writing:
every tree whose words all occur in the sentence is put together, smallest parts first, and a part goes on only if its
German stands in the sentence. The last test is the exact one: the German of the whole tree is the sentence.
"""

import functools
import itertools
from collections.abc import Iterator

from clearhead.data.pairs.english_clauses import UnclearTenseError, english
from clearhead.data.pairs.entries import (
    ACCUSATIVE,
    DATIVE,
    GENITIVE,
    NOMINATIVE,
    Adjective,
    Modal,
    Name,
    Noun,
    Phrase,
    Pronoun,
    Verb,
)
from clearhead.data.pairs.german_clauses import german, main_clause, phrase, relative, subordinate
from clearhead.data.pairs.german_nouns import has_article, is_indefinite, noun_phrase, prepositional
from clearhead.data.pairs.grammar import Line, PairCategory
from clearhead.data.pairs.tree import Node, repeats
from clearhead.data.pairs.vocabulary import lexicon, sentences

MAX_CHARACTERS = 1_000  # characters; the longest words in the longest structure of the grammar have fewer
MAX_PARTS = 100_000  # parts put together before a sentence is refused: many times what one of the grammar takes
CASES = NOMINATIVE, ACCUSATIVE, DATIVE  # of a field, where nothing more is known
CASES_OF = {
    "subject": (NOMINATIVE,),
    "recipient": (DATIVE,),
    "object": (ACCUSATIVE, DATIVE),
    "of": (GENITIVE,),
    "owner": (GENITIVE,),
}


def is_german(sentence: str) -> bool:
    """Whether the German of some tree that can be drawn is this sentence."""
    if len(sentence) > MAX_CHARACTERS:
        return False
    try:
        return any(_can_be_drawn(tree) for tree in _Parts(sentence).of(sentences()) if german(tree) == sentence)
    except _TooManyError:
        return False


def _can_be_drawn(tree: Node) -> bool:
    try:
        return bool(english(tree)) and not repeats(tree)
    except UnclearTenseError:
        return False


class _TooManyError(Exception):
    pass


class _Parts:
    """The parts of trees whose German can stand in a sentence."""

    def __init__(self, sentence: str) -> None:
        self.text = _flat(sentence)
        self.known: dict[PairCategory, list[Node]] = {}
        self.n_parts = 0

    def of(self, category: PairCategory) -> list[Node]:
        """Those that a category can make: its fields."""
        if category not in self.known:
            self.known[category] = [node for line in category.lines for node in self._of_line(line)]
        return self.known[category]

    def _of_line(self, line: Line) -> list[Node]:
        if not all(self._has_fixed(key, value) for key, value in line.fixed.items()):
            return []
        choices: list[list[Node]] = []
        for name, category in line.draws:
            if name is None:
                choices.append(self.of(category))
            elif category.words:
                choices.append([{name: word} for word in category.words if self._has_word(word)])
            else:
                choices.append([{name: node} for node in self.of(category) if self._stands(name, node)])
            if not choices[-1]:
                return []
        parts = []
        for chosen in itertools.product(*choices):
            self.n_parts += 1
            if self.n_parts > MAX_PARTS:
                raise _TooManyError
            parts.append({**line.fixed, **{key: value for node in chosen for key, value in node.items()}})
        return parts

    def _has(self, written: str) -> bool:
        return f" {_flat(written).strip()} " in self.text

    def _has_word(self, word: object) -> bool:
        return any(form in self.text for form in _stems(word))

    def _has_fixed(self, key: str, value: str) -> bool:
        """Whether the words that a fixed field writes occur, where it always writes some."""
        if key in ("degree", "grade"):
            return self._has(lexicon().phrases[value].german)
        if key == "det" and value not in ("a", "the", "whose"):
            return f" {lexicon().determiners[value].stem.lower()}" in self.text
        return True

    def _stands(self, name: str, node: Node) -> bool:
        """Whether a node, as this field of another one, can stand in the sentence: False only if it never does."""
        if "phrase" in node:
            return self._has(phrase(node))
        if "preposition" in node:
            return self._has(prepositional(node))
        if name in ("opening", "that", "whether") and self._has(subordinate(node)):
            return True
        if "verb" in node:
            return name not in ("opening", "first", "second", "that", "whether") or self._has_main(name, node)
        if name == "owner" and "name" in node:
            return True  # it gets an s
        return self._has_noun_phrase(name, node)

    def _has_main(self, name: str, node: Node) -> bool:
        return name in ("opening", "first", "second") and self._has(main_clause(node))

    def _has_noun_phrase(self, name: str, node: Node) -> bool:
        if "relative" in node and not self._has(relative(node["relative"], node)):
            return False
        written = [noun_phrase(node, case) for case in CASES_OF.get(name, CASES)]
        if name == "object" and is_indefinite(node):
            written += [noun_phrase(node, ACCUSATIVE, none=True), noun_phrase(node, DATIVE, none=True)]
        if name not in CASES_OF and has_article(node):  # which a preposition may swallow: im Garten
            written = [text.partition(" ")[2] for text in written]
        return any(map(self._has, written))


def _flat(text: str) -> str:
    """In small letters and without signs, a blank around each word."""
    return f" {' '.join(text.lower().translate(SIGNS).split())} "


SIGNS = str.maketrans(dict.fromkeys(",.?", " "))


@functools.cache
def _stems(word: object) -> tuple[str, ...]:
    """Beginnings of which at least one stands in any German sentence that the word occurs in."""
    return tuple(dict.fromkeys(stem.lower() for stem in _written(word) if stem))


def _written(word: object) -> Iterator[str]:
    match word:
        case Noun():
            yield from (*word.singular, *word.plural)
        case Verb():
            yield from (*word.german_present, *word.german_past, word.german_participle, word.infinitive)
        case Adjective():
            yield from (word.stem, word.german, word.german_comparative)
        case Name():
            yield word.english
        case Pronoun():
            yield from word.german
        case Phrase():
            yield max(word.german.split("{}"), key=len).strip(" .")
        case Modal():
            yield from (form for use in word.german if use for form in use)
