"""A sentence before it is written in a language: a tree of fields, and what both languages ask of it.

A node is a dict from the fields of `grammar.txt` to words of the lexicon, other nodes, or fixed strings. A noun phrase
may be a string: 'who', 'what', 'it', or 'same' and 'object', the subject and the object of the clause before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from clearhead.data.pairs.entries import PLURAL, THIRD, Name, Noun, Pronoun

Node = dict[str, Any]
Phrase = Node | str  # a noun phrase


@dataclass(frozen=True)
class Before:
    """The clause before, which 'same' and 'object' refer to."""

    subject: Phrase = "it"
    object: Phrase = "it"

    def resolve(self, phrase: Phrase) -> Phrase:
        """The noun phrase that is meant."""
        if phrase == "same":
            return self.subject
        return self.object if phrase == "object" else phrase


NOTHING_BEFORE = Before()


def after(clause: Node) -> Before:
    """What a clause leaves to be referred to."""
    return Before(clause.get("subject", "it"), clause.get("object", "it"))


def agreement(phrase: Phrase, before: Before) -> int:
    """What a verb with this subject agrees with: FIRST, THIRD or PLURAL."""
    phrase = before.resolve(phrase)
    if isinstance(phrase, str):
        return THIRD
    if "pronoun" in phrase:
        number: int = phrase["pronoun"].agreement
        return number
    return PLURAL if "plural" in phrase or "first" in phrase else THIRD


def pronoun_of(phrase: Phrase) -> str:
    """The English pronoun that means this noun phrase again."""
    if isinstance(phrase, str):
        return "it"
    if "first" in phrase:
        return "we" if "pronoun" in phrase["second"] else "they"
    if "plural" in phrase:
        return "they"
    word = phrase.get("pronoun") or phrase.get("name") or phrase["noun"]
    return str(word.english if "pronoun" in phrase else word.pronoun)


def repeats(tree: Node) -> bool:
    """Whether somebody or something is named twice (the king visits the king), or we and I are (we see me)."""
    named = ["I" if isinstance(word, Pronoun) and word.english == "we" else word.english for word in _mentioned(tree)]
    return len(set(named)) < len(named)


def _mentioned(node: Node) -> Iterator[Noun | Name | Pronoun]:
    for value in node.values():
        if isinstance(value, dict):
            yield from _mentioned(value)
        elif isinstance(value, Noun | Name | Pronoun):
            yield value
