"""English noun phrases."""

from collections.abc import Callable

from clearhead.data.pairs import inflection
from clearhead.data.pairs.tree import NOTHING_BEFORE, Before, Node, Phrase, pronoun_of
from clearhead.data.pairs.vocabulary import lexicon

Relative = Callable[[Node, Node], str]
OBJECTS = {"I": "me", "he": "him", "she": "her", "it": "it", "we": "us", "they": "them"}


def noun_phrase(
    phrase: Phrase,
    before: Before = NOTHING_BEFORE,
    *,
    relative: Relative | None = None,
    object_form: bool = False,
    none: bool = False,
) -> str:
    """A noun phrase; `object_form` says that a pronoun is one (him), `none` that there are none of it (no cats)."""
    if isinstance(phrase, str):
        meant = before.resolve(phrase)
        word = phrase if meant is phrase else pronoun_of(meant)
        return OBJECTS.get(word, word) if object_form else word
    if "pronoun" in phrase:
        return str(phrase["pronoun"].english_object if object_form else phrase["pronoun"].english)
    if "name" in phrase:
        return str(phrase["name"].english)
    if "first" in phrase:
        first, second = (noun_phrase(phrase[key], object_form=object_form) for key in ("first", "second"))
        return f"{first} and {second}"
    written = _determined(phrase, none=none)
    if "of" in phrase:
        written += " of " + noun_phrase(phrase["of"])
    return written + " " + relative(phrase["relative"], phrase) if relative and "relative" in phrase else written


def object_phrase(phrase: Phrase, before: Before = NOTHING_BEFORE, *, relative: Relative | None = None) -> str:
    """A noun phrase as an object, or after a preposition."""
    return noun_phrase(phrase, before, relative=relative, object_form=True)


def prepositional(node: Node) -> str:
    """A preposition and what comes after it."""
    preposition = lexicon().prepositions[node["preposition"]].english
    return f"{preposition} {node['city'].english if 'city' in node else object_phrase(node['landmark'])}"


def _determined(node: Node, *, none: bool) -> str:
    noun, plural = node["noun"], "plural" in node
    words = []
    if "number" in node:
        words.append(node["number"].english)
    if "degree" in node:
        words.append(node["degree"])
    words += [node[key].english for key in ("adjective", "hue") if key in node]
    words.append(noun.english_plural if plural else noun.english)
    written = " ".join(words)
    determiner = node.get("det", "")
    if none:
        return "no " + written
    if "owner" in node:
        return f"{noun_phrase(node['owner'])}'s {written}"
    if determiner == "a":
        return f"{inflection.article(written)} {written}"
    if determiner in ("", "whose"):
        return written
    entry = lexicon().determiners[determiner]
    return f"{entry.english_plural if plural else entry.english} {written}"
