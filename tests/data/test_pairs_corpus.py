"""The corpus `pairs`: the same for ever, splits that do not mix, counts, and one German sentence for each English."""

import hashlib
import itertools
import os
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache, partial

import pytest

from clearhead.data import pairs
from clearhead.data.pairs.english_clauses import UnclearTenseError, english
from clearhead.data.pairs.entries import Adjective, Name, Noun, Verb
from clearhead.data.pairs.german_clauses import german
from clearhead.data.pairs.grammar import PairCategory, read_grammar
from clearhead.data.pairs.splits import combinations
from clearhead.data.pairs.tree import Node
from clearhead.data.pairs.vocabulary import lexicon, sentences, sentences_of

# One digest for each version: whoever changes the pairs must raise VERSION, and says so here.
DIGESTS = {1: "9975a5de3c2942973785faafc73c978534e8a1fbd5380b72a35f4b4548572b4c"}

ENTRIES = list(dict.fromkeys(entry for entries in lexicon().categories.values() for entry in entries))
NOUNS = {form: entry for entry in ENTRIES if isinstance(entry, Noun) for form in (entry.english, entry.english_plural)}
ADJECTIVES = {entry.english for entry in ENTRIES if isinstance(entry, Adjective)}


@cache
def some(split: str, seed: int, number: int) -> list[tuple[str, str]]:
    return list(itertools.islice(pairs.sentence_pairs(split, seed), number))


train_pairs = partial(some, "train", 1, 6000)
seen_pairs = partial(some, "seen", 1, 300)
unseen_pairs = partial(some, "unseen", 1, 300)


def trees(start: PairCategory, number: int, seed: int) -> list[Node]:
    bits = random.Random(seed)
    nodes: list[Node] = [{} for _ in range(number)]
    for tree in nodes:
        start.fill(tree, bits)
    return nodes


def hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


# ---------------------------------------------------------------- the same for ever


def test_a_version_never_changes_its_pairs() -> None:
    lines = [
        f"{source}\t{target}\n"
        for split in (train_pairs()[:1000], seen_pairs(), unseen_pairs())
        for source, target in split
    ]
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == DIGESTS[pairs.VERSION]


def test_the_same_in_another_process_and_another_with_another_seed() -> None:
    code = "import itertools, sys; from clearhead.data.pairs import sentence_pairs as s; sys.stdout.reconfigure("
    code += "encoding='utf-8'); [print(*pair, sep='\\t') for pair in itertools.islice(s('train', 1), 50)]"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, capture_output=True, check=True, encoding="utf-8", env=environment, timeout=100)
    assert [tuple(line.split("\t")) for line in process.stdout.splitlines()] == train_pairs()[:50]
    assert some("train", 2, 50) != train_pairs()[:50]


# ---------------------------------------------------------------- splits


def test_no_split_holds_a_sentence_of_another_whatever_the_seed() -> None:
    known = seen_pairs() + some("seen", 9, 300)
    held_out = {*known, *unseen_pairs()}
    assert not held_out & {*train_pairs(), *some("train", 9, 2000)}
    assert not {*known} & {*unseen_pairs()}
    assert {hashed(source) % 20 == 0 for source, _ in train_pairs()} == {False}
    assert {hashed(source) % 20 == 0 for source, _ in known} == {True}


def test_training_never_sees_an_adjective_with_a_noun_that_is_held_out() -> None:
    """By the text alone: neighbors in an English sentence, and the hash that DESIGN promises, computed here."""
    met: Counter[tuple[str, str]] = Counter()
    for source, _ in train_pairs() + seen_pairs():
        words = re.findall(r"[a-z]+", source.lower())
        for first, second in itertools.pairwise(words):
            if first in ADJECTIVES and second in NOUNS:
                met[first, NOUNS[second].english] += 1
    assert len(met) > 1000
    assert not [two for two in met if hashed(" ".join(two)) % 32 == 0]


def test_every_unseen_sentence_holds_two_words_that_never_meet_in_training() -> None:
    heads = ADJECTIVES | {entry.key for entry in ENTRIES if isinstance(entry, Verb)}
    forbidden = [
        (head, noun) for head in heads for noun in {*NOUNS.values()} if hashed(f"{head} {noun.english}") % 32 == 0
    ]
    forms = {entry.key: {*entry.present, *entry.past, entry.participle} for entry in ENTRIES if isinstance(entry, Verb)}
    for source, _ in unseen_pairs():
        words = {*re.findall(r"[a-z]+", source.lower())}
        assert any(
            words & forms.get(head, {head}) and words & {noun.english, noun.english_plural} for head, noun in forbidden
        ), source


def test_every_word_of_the_held_out_splits_is_met_in_training_often() -> None:
    known = Counter(word for source, _ in train_pairs() for word in re.findall(r"[a-z]+", source.lower()))
    for split in (seen_pairs(), unseen_pairs()):
        words = [word for source, _ in split for word in re.findall(r"[a-z]+", source.lower())]
        assert sum(known[word] >= 3 for word in words) > 0.99 * len(words)


def test_a_few_percent_of_the_combinations_are_held_out_and_every_word_keeps_most_of_its_own() -> None:
    met = {two for tree in trees(sentences(), 20_000, seed=1) for two in combinations(tree)}
    partners: dict[object, list[bool]] = defaultdict(list)
    for word, noun in met:
        kept_out = hashed(f"{word.key if isinstance(word, Verb) else word.english} {noun.english}") % 32 == 0
        partners[word].append(kept_out)
        partners[noun].append(kept_out)
    assert 5000 < len(met) < sum(map(len, partners.values()))
    assert 0.02 < sum(map(sum, partners.values())) / sum(map(len, partners.values())) < 0.05
    assert max(sum(kept_out) / len(kept_out) for kept_out in partners.values()) <= 0.25
    assert min(len(kept_out) - sum(kept_out) for kept_out in partners.values()) >= 4


# ---------------------------------------------------------------- counts


def test_there_are_enough_words_each_of_them_common() -> None:
    assert pairs.n_entries() >= 400
    drawn: Counter[object] = Counter()

    def count(node: Node) -> None:
        for value in node.values():
            if isinstance(value, dict):
                count(value)
            elif not isinstance(value, str):
                drawn[value] += 1

    for tree in trees(sentences(), 20_000, seed=2):
        count(tree)
    rare = [entry for entry in ENTRIES if isinstance(entry, Noun | Verb | Adjective | Name) and drawn[entry] < 20]
    assert [entry.english for entry in rare] == []


def test_the_count_of_sentences_is_that_of_an_enumeration() -> None:
    words = {"noun": ["cat", "dog", "owl"], "hue": ["red", "blue"]}
    text = """
let SIGN = yes no
sentence
  3: form:one +thing.yes
  1: form:two first=thing.yes second=thing.no
thing.SIGN
  2: sign:SIGN noun=noun
  1: noun=noun hue=hue
thing.none
  1: nothing
"""
    start = read_grammar(text, words)
    drawn = {repr(sorted(tree.items())) for tree in trees(start, 20_000, seed=3)}
    assert start.count() == (3 + 6) + (3 + 6) ** 2 == len(drawn)


def test_there_are_astronomically_many_sentences() -> None:
    assert pairs.n_sentences() > 10**30
    assert len({source for source, _ in train_pairs()}) > 0.99 * len(train_pairs())
    lengths = [len(source.split()) for source, _ in train_pairs()]
    assert max(lengths) <= 30
    assert sum(4 <= length <= 16 for length in lengths) > 0.95 * len(lengths)


# ---------------------------------------------------------------- one translation


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("size", "number"), [(1, 20_000), (2, 20_000), (4, 10_000)])
def test_no_english_sentence_has_two_translations_nor_any_german_one(size: int, number: int) -> None:
    """Of 10^40 sentences none comes twice; so each category keeps few words, and sentences come again and again."""
    bits = random.Random(size)
    few = {name: bits.sample(words, min(size, len(words))) for name, words in lexicon().categories.items()}
    translations, sources = defaultdict(set), defaultdict(set)
    for tree in trees(sentences_of(few), number, seed=size):
        try:
            source = english(tree)
        except UnclearTenseError:
            continue
        translations[source].add(german(tree))
        sources[german(tree)].add(source)
    assert len(translations) > number // 2
    assert [item for item in translations.items() if len(item[1]) > 1] == []
    assert [item for item in sources.items() if len(item[1]) > 1] == []


def test_no_word_is_two_words() -> None:
    """No English form belongs to two nouns, verbs or adjectives, and no German word translates two English ones."""
    meant: dict[str, set[str]] = defaultdict(set)
    translated: dict[str, set[str]] = defaultdict(set)
    for entry in ENTRIES:
        if isinstance(entry, Noun):
            for form in (entry.english, entry.english_plural):
                meant[form].add(entry.singular[0])
            translated[entry.singular[0]].add(entry.english)
        elif isinstance(entry, Verb):
            reflexive = "sich " if entry.reflexive else ""
            lemma = f"{reflexive}{entry.prefix}{entry.infinitive} {entry.preposition}"
            for form in (*entry.present, *entry.past, entry.participle):
                meant[f"{form} {entry.particle}".strip()].add(lemma)
            translated[lemma].add(entry.key)
        elif isinstance(entry, Adjective):
            meant[entry.english].add(entry.german)
            translated[entry.german].add(entry.english)
    assert {form: lemmas for form, lemmas in meant.items() if len(lemmas) > 1} == {}
    assert {lemma: words for lemma, words in translated.items() if len(words) > 1} == {}
