"""Sentences of the corpus `pairs` put together by hand, for the tests: words are named by their English."""

from typing import Any

from clearhead.data.pairs.english_clauses import english
from clearhead.data.pairs.entries import Modal, Verb
from clearhead.data.pairs.german_clauses import german
from clearhead.data.pairs.tree import Node
from clearhead.data.pairs.vocabulary import lexicon


def word(name: str, kind: str = "") -> Any:
    """The word with this English, in a category whose name begins with `kind`."""
    for category, entries in lexicon().categories.items():
        for entry in entries if category.startswith(kind) else []:
            if name == (entry.key if isinstance(entry, Verb) else entry.english):
                return entry
    raise LookupError(f"no word '{name}' among {kind}")


def np(text: str, **more: Any) -> Node:
    """A noun phrase from its English: 'the old dog', 'two cats', 'Anna', 'she'; a star marks a plural."""
    words = text.rstrip("*").split()
    node: Node = {"plural": "yes"} if text.endswith("*") else {}
    if words[0] in ("I", "he", "she", "we", "they"):
        return {"pronoun": word(words[0])}
    if words[0][0].isupper() and len(words) == 1:
        return {"name": word(words[0], "mi")}
    if words[0] in lexicon().determiners or words[0] == "whose":
        node["det"] = words.pop(0)
    if words[0] in ("two", "three", "twelve", "twenty-one"):
        node["number"] = word(words.pop(0), "number")
    if words[0] == "very":
        node["degree"] = words.pop(0)
    node["noun"] = word(words.pop())
    for key, name in zip(("adjective", "hue"), words, strict=False):
        node[key] = word(name, "adjective")
    return {**node, **more}


def at(preposition: str, where: Node | str, **more: str) -> Node:
    """A place: a preposition with a noun phrase or the name of a city."""
    inner = {"city": word(where)} if isinstance(where, str) else {"landmark": where}
    return {"preposition": preposition, **inner, **more}


def when(phrase: str, slot: str = "") -> Node:
    """A time, with what fills its hole."""
    return {"phrase": word(phrase), **({"slot": word(slot)} if slot else {})}


def clause(verb: str, tense: str = "present", **fields: Any) -> Node:
    """A clause; adjectives, adverbs and modal verbs are given by their English."""
    node: Node = {"verb": word(verb, "verb"), "tense": tense, **fields}
    for key, kind in (("predicate", "adjective"), ("manner", "manner"), ("often", ""), ("age", "number")):
        if key in node:
            node[key] = word(node[key], kind)
    if "modal" in node:
        modals = [entry for entry in lexicon().categories["modal.present"] if isinstance(entry, Modal)]
        node["modal"] = next(modal for modal in modals if node["modal"] in (modal.english[0] or ()))
    return node


def task(verb: str, **fields: Any) -> Node:
    """What somebody tries to do."""
    return {key: value for key, value in clause(verb, **fields).items() if key != "tense"}


def linked(opening: Node, link: str, follower: Node, *, inverted: bool = False) -> Node:
    """Two clauses, the second of which explains the first; inverted, the first is the one that explains."""
    node = {"form": "linked", "opening": opening, "link": word(link), "follower": follower}
    return {**node, "inverted": "yes"} if inverted else node


def written(node: Node) -> tuple[str, str]:
    """The sentence in English and German."""
    sentence = {"form": "statement", **node}
    return english(sentence), german(sentence)


def asked(node: Node, asking: str = "", question: str = "") -> Node:
    """A question; `asking` is the field that it asks for, `question` the category of its question word."""
    words = {"question": lexicon().categories[question][0]} if question else {}
    return {**node, "form": "question", **({"asking": asking} if asking else {}), **words}


def denied(node: Node) -> Node:
    """The same denied."""
    return {**node, "negated": "yes"}


def fronted(node: Node, what: str = "time") -> Node:
    """The same with its time or place in front."""
    return {**node, "fronted": what}


def related(noun: str, role: str, relative: Node) -> Node:
    """A noun phrase with a relative clause."""
    return np(noun, relative={**relative, "role": role})
