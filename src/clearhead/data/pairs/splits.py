"""Which sentences are for training, and which are held out.

A share of all combinations of two words is kept out of training: an adjective with its noun (old bridge), a verb with
its object (reads letters). They are chosen by a hash, so a combination is held out in every sentence or in none.

    unseen   sentences with such a combination: each holds at least one
    seen     of all others, those whose hash says so: their words have all met in training, in other sentences
    train    all the rest
"""

import functools
import hashlib
from collections.abc import Iterator

from clearhead.data.pairs.entries import Adjective, Noun, Verb
from clearhead.data.pairs.tree import Node

SPLITS = ("train", "seen", "unseen")

UNSEEN_SHARE = 32  # one combination of so many is held out
SEEN_SHARE = 20  # one sentence of so many is

Combination = tuple[Adjective | Verb, Noun]


def split_of(tree: Node, english: str) -> str:
    """The split that a sentence belongs to."""
    if any(held_out(*combination) for combination in combinations(tree)):
        return "unseen"
    return "seen" if _hash(english) % SEEN_SHARE == 0 else "train"


def combinations(node: Node) -> Iterator[Combination]:
    """Every adjective with its noun and every verb with its object, in a tree."""
    for key, value in node.items():
        if isinstance(value, dict):
            if key in ("object", "about") and "noun" in value and "verb" in node:
                yield node["verb"], value["noun"]
            yield from combinations(value)
        elif isinstance(value, Adjective) and "noun" in node:
            yield value, node["noun"]


@functools.cache
def held_out(word: Adjective | Verb, noun: Noun) -> bool:
    """Whether training never sees these two together."""
    first = f"{word.key} " if isinstance(word, Verb) else f"{word.english} "
    return _hash(first + noun.english) % UNSEEN_SHARE == 0


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
