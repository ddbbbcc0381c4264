"""The corpus `stories`: its exact entropy, its probability, its grammar in both senses, and that it never changes."""

import hashlib
import itertools
import math
import re
import subprocess
import sys

import numpy as np
import pytest

from clearhead.data import stories
from clearhead.data.stories import parse
from clearhead.data.stories.entropy import measure
from clearhead.data.stories.grammar import texts
from clearhead.data.stories.unambiguous import ambiguities

SAMPLE = stories.text(400_000, seed=11)
FEW = stories.text(20_000, seed=11)

# One digest for each version: whoever changes the text must raise VERSION, and says so here.
DIGESTS = {1: "d3e2f3a336afdaf90e982b6cf38db65403712c1fb6ce1d0512c7faa8cda969ee"}


# ---------------------------------------------------------------- entropy and probability


def test_no_text_has_two_derivations() -> None:
    assert list(ambiguities(stories.english())) == []


@pytest.mark.campaign
def test_exact_entropy_and_length_agree_with_a_long_sample() -> None:
    """Each within 4 standard errors of the sample's mean, estimated from the stories, which are independent."""
    drawn = list(itertools.islice(texts(stories.english(), seed=2), 6000))
    surprise = np.array([-log_probability for _, log_probability in drawn])
    length = np.array([len(story) for story, _ in drawn])
    exact = measure(stories.english())
    rate = stories.entropy_per_character()
    assert rate == exact.entropy / exact.characters
    for values, expected in ((surprise, exact.entropy), (length, exact.characters), (surprise - rate * length, 0.0)):
        standard_error = values.std(ddof=1) / math.sqrt(len(values))
        assert abs(values.mean() - expected) < 4 * standard_error
        assert standard_error < 0.01 * exact.characters  # or the bound above would say nothing


def test_probability_sums_over_all_derivations_and_there_is_one() -> None:
    drawn = list(itertools.islice(texts(stories.english(), seed=4), 200))
    for story, recorded in drawn:
        assert parse.derivations(stories.english(), story) == [pytest.approx(recorded, abs=1e-9)]
    whole = "".join(story for story, _ in drawn)
    assert stories.log_probability(whole) == pytest.approx(sum(recorded for _, recorded in drawn))
    assert stories.log_probability("") == 0.0


SWAPS = {
    "agreement": (" were ", " was "),
    "article": (" a ", " an "),
    "pronoun": (" she ", " he "),
    "verb": (" sat ", " sits "),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("right", "wrong"), [*SWAPS.values(), (" an ", " a "), (" he ", " she "), (" was ", " were ")])
def test_a_single_wrong_word_is_impossible(right: str, wrong: str) -> None:
    positions = [m.start() for m in re.finditer(re.escape(right), SAMPLE)][:40]
    assert len(positions) == 40
    for position in positions:
        start, end = SAMPLE.rfind("\n\n", 0, position), SAMPLE.index("\n\n", position)
        story = SAMPLE[start + 2 if start >= 0 else 0 : end + 2]
        at = position - (start + 2 if start >= 0 else 0)
        assert math.isfinite(stories.log_probability(story))
        assert stories.log_probability(story[:at] + wrong + story[at + len(right) :]) == -math.inf


def test_what_comes_first_cannot_come_later() -> None:
    """Swapping two paragraphs of a story, or cutting one out of its middle that the plot needs, is impossible."""
    for story in itertools.islice(stories.stories(seed=6), 100):
        title, *paragraphs = story.rstrip("\n").split("\n")
        assert len(paragraphs) >= 3
        swapped = [title, *paragraphs[:-2], paragraphs[-1], paragraphs[-2]]
        assert stories.log_probability("\n".join(swapped) + "\n\n") == -math.inf
        assert stories.log_probability("\n".join([title, *paragraphs[:-1]]) + "\n\n") == -math.inf


def test_a_thing_is_found_only_where_it_was_left_and_a_list_is_remembered_in_order() -> None:
    lost = re.search(r"\n\n([^\n]*Lost [^\n]*\n(?:[^\n]+\n)+?[^\n]*there, ([a-z ]+), w[^\n]+\n)\n", SAMPLE)
    assert lost
    story, spot = lost[1] + "\n", lost[2]
    assert story.count(spot) >= 2
    assert math.isfinite(stories.log_probability(story))
    other = next(s for s in ("in the garden", "under the bed", "on the shelf") if s not in story)
    assert stories.log_probability(other.join(story.rsplit(spot, 1))) == -math.inf

    errand = re.search(r"\n\n([^\n]* Goes to the Market\n(?:[^\n]+\n)+\n)", SAMPLE)
    assert errand
    listed = re.search(
        r'(?:need|me) ((?:an?|some) [a-z ]+), ((?:an?|some) [a-z ]+) and ((?:an?|some) [a-z ]+)[,."]', errand[1]
    )
    assert listed
    assert math.isfinite(stories.log_probability(errand[1]))
    assert errand[1].lower().count(listed[3]) >= 3
    muddled = errand[1].replace(f"{listed[1]}, {listed[2]} and", f"{listed[2]}, {listed[1]} and", 1)
    assert stories.log_probability(muddled) == -math.inf


@pytest.mark.parametrize(
    "text", ["x", "\n\n", "Once upon a time.\n\n", FEW[:100], FEW[1:], FEW.rstrip("\n"), FEW + "\n"]
)
def test_anything_but_whole_stories_is_impossible(text: str) -> None:
    assert math.isfinite(stories.log_probability(FEW))
    assert stories.log_probability(text) == -math.inf


# ---------------------------------------------------------------- the same text for ever, of any size


def test_the_text_is_a_function_of_seed_and_size() -> None:
    long = stories.text(50_000, seed=3)
    for size in (1, 1000, 20_000):
        short = stories.text(size, seed=3)
        assert len(short) >= size
        assert long.startswith(short)
        assert (
            len(short[:-2][: short[:-2].rfind("\n\n") + 2]) < size or short.count("\n\n") == 1
        )  # not a story too many
    assert stories.text(0, seed=3) == ""
    assert stories.text(50_000, seed=4) != long
    assert (
        "".join(itertools.islice(stories.stories(seed=3), 20))
        == long[: len("".join(itertools.islice(stories.stories(3), 20)))]
    )


def test_a_version_is_its_bytes() -> None:
    digest = hashlib.sha256(stories.text(100_000, seed=1).encode()).hexdigest()
    assert digest == DIGESTS[stories.VERSION]


def test_nothing_is_read_at_import() -> None:
    check = "from clearhead.data import stories; assert stories.english.cache_info().currsize == 0"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=100)


# ---------------------------------------------------------------- English


def test_the_grammar_is_large_and_the_alphabet_small() -> None:
    assert stories.n_rules() >= 150
    assert stories.n_words() >= 1000
    assert len({*re.findall(r"[a-z]+", SAMPLE.lower())}) >= 1000  # and most of them do occur
    assert len({*SAMPLE}) <= 62
    assert {*SAMPLE} <= {*'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?:" \n'}


def test_stories_are_too_many_to_repeat() -> None:
    drawn = SAMPLE.split("\n\n")[:-1]
    assert len({*drawn}) == len(drawn)
    sentences = re.findall(r"[^.!?\n]{60,}[.!?]", SAMPLE)
    assert len({*sentences}) > 0.8 * len(sentences)


@pytest.mark.parametrize(
    "blunder",
    [
        r" \n|  |\n\n\n|^ |\t",  # stray blanks
        r" [.,!?]|[,.]{2}|[a-z][A-Z]",  # punctuation out of place
        r"\b[Aa] (?=[aeioAEIO])",  # a owl
        r"\b[Aa]n (?=[^aeiouhAEIOUH])",  # an kite
        r"[.!?] [a-z]",  # a small letter after a sentence
        r"^[a-z]",  # or at the start of a line
        r"\b(\w+) \1\b",  # a word twice
        r"\b(they|were) (was|is|has)\b|\b(he|she|it) (were|are|have)\b",
        r"\b(a|an) (?!pair|few|dozen)\w*(?:mittens|boots|shoes|marbles|scissors|socks)\b",
    ],
)
def test_nothing_reads_wrong(blunder: str) -> None:
    match = re.search(blunder, SAMPLE, re.MULTILINE)
    assert match is None, SAMPLE[max(0, match.start() - 80) : match.end() + 40]


def test_quotes_open_and_close_within_a_paragraph() -> None:
    paragraphs = re.findall(r"(?<!\n\n)(?<=\n)[^\n]+", SAMPLE)  # all lines but the titles
    assert all(paragraph[-1] in '.!?"' for paragraph in paragraphs)
    for line in paragraphs:
        assert line.count('"') % 2 == 0, line
        for speech in line.split('"')[1::2]:
            assert speech == speech.strip()
            assert speech[-1] in ".,!?", line
