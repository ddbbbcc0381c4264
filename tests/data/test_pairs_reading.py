"""What the grammar of `pairs` says of German: which sentences it can write, and whether noun phrases agree."""

import itertools
import re
from functools import cache

import pytest
from german_checker import nouns_in

from clearhead.data import pairs
from clearhead.data.pairs.agreement import agreements
from clearhead.data.pairs.entries import Adjective
from clearhead.data.pairs.reading import is_german
from clearhead.data.pairs.vocabulary import lexicon

STEMS = {entry.stem for entries in lexicon().categories.values() for entry in entries if isinstance(entry, Adjective)}


@cache
def drawn_sentences() -> list[str]:
    return [german for split in pairs.SPLITS for _, german in itertools.islice(pairs.sentence_pairs(split, 31), 60)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("split", pairs.SPLITS)
def test_everything_that_the_grammar_writes_is_accepted_and_agrees(split: str) -> None:
    drawn = [german for _, german in itertools.islice(pairs.sentence_pairs(split, 32), 60)]
    score = pairs.score(drawn)
    assert (score.sentences, score.accepted_sentences, score.agreement) == (60, 1, 1)
    assert score.accepted_stories is None


@pytest.mark.campaign
def test_a_determiner_that_does_not_agree_is_refused_and_counted() -> None:
    """By the tests' own paradigms: each determiner of a noun in turn becomes each other one."""
    n_wrong = 0
    for german in drawn_sentences():
        for match in re.finditer(r"\b(de[rnms]|die|das|ein(?:e[mnrs]?)?) (?=[A-ZÄÖÜ])", german):
            for other in ("der", "die", "das", "dem", "den", "des"):
                wrong = german[: match.start()] + other + german[match.end(1) :]
                if all(noun.agrees() for noun in nouns_in(wrong, STEMS)):
                    continue
                n_wrong += 1
                assert not is_german(wrong), wrong
                assert not all(agreements(wrong)), wrong
    assert n_wrong > 80


@pytest.mark.parametrize(
    ("sentence", "accepted", "agrees"),
    [
        ("Der Hund sieht die Katze.", True, True),
        ("Die Hund sieht die Katze.", False, False),  # gender
        ("Der Hund sieht der Katze.", False, True),  # a dative, but sehen takes an accusative
        ("Der alte Mann schläft im Garten.", True, True),
        ("Der alten Hund schläft im Garten.", False, False),
        ("Der alte Hund schläft im Küche.", False, False),
        ("Die zwei Hund schlafen.", False, False),  # number
        ("Der Hund schlafen.", False, True),
        ("Der Hund die Katze sieht.", False, True),  # order
        ("Der Hund sieht den Hund.", False, True),  # nobody sees himself
        ("der Hund sieht die Katze.", False, True),
        ("Der Hund sieht die Katze", False, True),
        ("Der Hund  sieht die Katze.", False, True),
    ],
)
def test_a_sentence_by_hand(sentence: str, accepted: bool, agrees: bool) -> None:
    assert is_german(sentence) == accepted
    assert all(agreements(sentence)) == agrees


@pytest.mark.campaign
def test_every_german_word_is_in_its_only_place() -> None:
    """Two neighbors exchanged are refused, unless the grammar writes that too, which German seldom does."""
    refused, total = 0, 0
    for german in drawn_sentences()[::12]:
        words = german.rstrip(".?").split()
        for index in range(1, len(words) - 1):
            other = [*words]
            other[index], other[index + 1] = words[index + 1], words[index]
            if other != words:
                total += 1
                refused += not is_german(" ".join(other) + german[-1])
    assert refused > 0.95 * total > 30


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a" * 300_000,
        "Der Hund sieht die Katze. " * 10_000,
        " ".join(
            entry.stem for entries in lexicon().categories.values() for entry in entries if hasattr(entry, "stem")
        ),
        " ".join(
            form
            for category in ("man", "woman", "animal", "crop", "ware", "inside")
            for noun in lexicon().categories[category][:6]
            for form in noun.singular[:1]  # type: ignore[union-attr]
        )
        + " der die das den dem sieht sah hat wird kann im gestern nicht sehr",
        "\x00\ud800\x1b[31m ☃ ıİ",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_text_is_read_in_bounded_time_and_refused(text: str) -> None:
    score = pairs.score([text])
    assert score.accepted_sentences == 0
