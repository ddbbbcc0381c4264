"""The built-in corpus `pairs`: English sentences with their German translations, from a grammar of both languages.

A sentence is drawn as a tree that belongs to no language, and each language writes it: agreement, case, word order and
all. So every reference is exact, and an English sentence has one translation only.

    nouns.txt, verbs.txt, adjectives.txt, words.txt    the words of both languages
    grammar.txt                                        what can be said with them
    entries, inflection, lexicon, vocabulary           what is known of a word, what is made by rule, how words are read
    tree, grammar                                      trees, drawn and counted
    english_clauses, english_nouns, german_...         a tree, written
    splits                                             what is held out of training
    reading, agreement                                 which German the grammar can write, and what agrees in any

To add words or sentences, edit the .txt files (then raise VERSION). The same seed gives the same pairs for ever, for
any VERSION, on every machine. Nothing is read or computed at import.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence

from clearhead.data.grammar_score import GrammarScore, share
from clearhead.data.pairs.agreement import agreements
from clearhead.data.pairs.english_clauses import UnclearTenseError, english
from clearhead.data.pairs.german_clauses import german
from clearhead.data.pairs.reading import is_german
from clearhead.data.pairs.splits import SPLITS, split_of
from clearhead.data.pairs.tree import Node, repeats
from clearhead.data.pairs.vocabulary import lexicon, sentences

__all__ = ["SPLITS", "VERSION", "n_entries", "n_sentences", "score", "sentence_pairs"]

VERSION = 1  # raised whenever a change to the words, the grammar or the sampler changes the pairs


def sentence_pairs(split: str = "train", seed: int = 1) -> Iterator[tuple[str, str]]:
    """Pairs (English, German) without end, drawn at random from a split of all sentences.

    No split yields a sentence of another, whatever the seeds. Frequent short sentences may come again.
    """
    assert split in SPLITS, f"the splits of pairs are {', '.join(SPLITS)}"
    return ((english, german(tree)) for tree, english in _draw_trees(split, seed))


def n_entries() -> int:
    """The number of lexical entries: words with their translation, each counted once."""
    return len(lexicon().lines)


def n_sentences() -> int:
    """The number of sentences that the grammar derives, all splits together.

    Exact for the grammar as written; the few percent that name the same thing twice are never drawn.
    """
    return sentences().count()


def score(translations: Sequence[str]) -> GrammarScore:
    """What the grammar says of German sentences: whether it can write them, and whether their noun phrases agree."""
    agreeing = [agrees for sentence in translations for agrees in agreements(sentence)]
    return GrammarScore(
        sentences=len(translations),
        accepted_sentences=share(sum(map(is_german, translations)), len(translations)),
        agreement=share(sum(agreeing), len(agreeing)),
    )


def _draw_trees(split: str, seed: int) -> Iterator[tuple[Node, str]]:
    """Trees of a split, each with its English."""
    digest = hashlib.blake2b(f"pairs {VERSION} {split} {seed}".encode(), digest_size=16).digest()
    bits = random.Random(int.from_bytes(digest, "big"))
    start = sentences()
    while True:
        tree: Node = {}
        start.fill(tree, bits)
        if repeats(tree):
            continue
        try:
            written = english(tree)
        except UnclearTenseError:
            continue
        if split_of(tree, written) == split:
            yield tree, written
