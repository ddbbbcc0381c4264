"""What the grammar of `stories` says of texts: which sentences some story holds, and what their words refer to."""

import itertools
import random
import re
from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings
from small_grammars import expand, grammar_of, grammars

from clearhead.data import stories
from clearhead.data.stories import parse
from clearhead.data.stories.grammar import Grammar, RuleCall
from clearhead.data.stories.sentences import Sentences, cut

DRAWN = list(itertools.islice(stories.stories(seed=21), 25))
SENTENCES = Sentences(stories.english())
PEOPLE = ("Lily", "Rosa", "Thea", "Tom", "Emil", "Ivan")


def exchanged(text: str, vocabulary: list[str]) -> Iterator[str]:
    """The text with each of its words exchanged for each other word."""
    for match in re.finditer(r"\w+", text):
        for word in vocabulary:
            if word != match[0]:
                yield text[: match.start()] + word + text[match.end() :]


def every_text(grammar: Grammar) -> set[str]:
    return {text for text, _, _ in expand(grammar, (RuleCall(grammar.start, ()),), {})}


# ---------------------------------------------------------------- exactly the sentences, against brute force


@pytest.mark.campaign
@settings(max_examples=60, deadline=None)
@given(grammars("start\n  1: <r0> / /\n  1: <r0>\n"))
def test_a_sentence_is_accepted_if_and_only_if_some_text_holds_it(grammar: Grammar) -> None:
    texts = every_text(grammar)
    assume(len(texts) <= 300)
    texts = {text if text.endswith("\n") else text + "\n" for text in texts}
    held = {sentence for text in texts for sentence in cut(text)}
    reader = Sentences(grammar)
    vocabulary = sorted({word for text in texts for word in re.findall(r"\w+", text)})
    for sentence in sorted(held)[:20]:
        assert reader.readings(sentence)
        for other in itertools.islice(exchanged(sentence, vocabulary), 60):
            assert bool(reader.readings(other)) == (other in held), other
        for part in (sentence[1:], sentence[:-1], sentence[: len(sentence) // 2], sentence + " " + sentence):
            assert bool(reader.readings(part)) == (part in held), part


@settings(max_examples=40, deadline=None)
@given(grammars())
def test_a_text_with_a_word_exchanged_is_refused_unless_the_grammar_makes_it_too(grammar: Grammar) -> None:
    texts = every_text(grammar)
    assume(len(texts) <= 300)
    vocabulary = sorted({word for text in texts for word in re.findall(r"\w+", text)})
    for text in sorted(texts)[:10]:
        for other in itertools.islice(exchanged(text, vocabulary), 60):
            assert bool(parse.derivations(grammar, other)) == (other in texts), other


KNOWN = """
start
  1: {new p} met {new q}. <tale> / /
  1: {new p} slept. {p.She} is {new look ~ p}. / /
tale(p q)
  2 [p.sex=q.sex]: {p} saw {q}. {p} left.
  2 [p.sex!=q.sex]: {q.She} sang, and {p.she} (sang too|left {q}).
"""


@pytest.mark.parametrize(
    ("sentence", "accepted"),
    [
        ("Ann saw Ida Ann.", True),
        ("Ann saw Tom.", False),  # the guard, of two variables that were bound before
        ("Ann saw Ann.", False),  # two variables of one category
        ("She sang, and he sang too.", True),
        ("She sang, and she sang too.", False),
        ("She sang, and he left Ann.", True),
        ("She sang, and he left Tom.", False),
        ("He is big.", True),
        ("He is red.", False),  # nobody who is a he is of the kind that can be red
        ("Tom left.", False),  # nobody else is a he, so he never meets the like of him
        ("saw Ida Ann.", False),  # not from its beginning
        ("Ann saw Ida", False),  # not to its end
        ("", False),
    ],
)
def test_what_is_known_of_words_before_the_sentence_counts(sentence: str, accepted: bool) -> None:
    assert bool(Sentences(grammar_of(KNOWN)).readings(sentence)) == accepted


# ---------------------------------------------------------------- the stories


@pytest.mark.campaign
def test_everything_that_the_grammar_makes_is_accepted() -> None:
    score = stories.score(DRAWN)
    assert score.stories == len(DRAWN)
    assert score.sentences > 300
    assert (score.accepted_sentences, score.accepted_stories, score.agreement, score.kept_names) == (1, 1, 1, 1)


def hero_of(story: str) -> str | None:
    return next((name for name in PEOPLE if re.search(rf"\b{name}\b", story.split("\n")[0])), None)


def test_another_name_on_the_way_is_noticed() -> None:
    rng = random.Random(1)
    heroes = [(story, hero_of(story)) for story in itertools.islice(stories.stories(seed=22), 150)]
    kept = []
    for story, hero in [(story, hero) for story, hero in heroes if hero][:12]:
        later = [match.start() for match in re.finditer(rf"\b{hero}\b", story)][1:]
        index = rng.choice(later)
        other = rng.choice([name for name in PEOPLE if name not in story])
        score = stories.score([story[:index] + other + story[index + len(str(hero)) :]])
        assert score.accepted_stories == 0
        assert score.accepted_sentences is not None
        assert score.agreement is not None
        assert score.accepted_sentences < 1 or score.agreement < 1
        kept.append(score.kept_names)
    assert min(share for share in kept if share is not None) < 1


def test_a_pronoun_of_the_other_sex_does_not_agree() -> None:
    story = next(story for story in DRAWN if re.search(r" (She|He) (liked|loved) to ", story))
    wrong = re.sub(r" (She|He) (?=(liked|loved) to )", lambda m: " He " if m[1] == "She" else " She ", story, count=1)
    score = stories.score([wrong])
    assert score.accepted_sentences == 1  # of somebody else it would be right
    assert score.agreement is not None
    assert 0.5 < score.agreement < 1
    assert score.accepted_stories == 0


def test_what_a_sample_has_cut_off_is_not_held_against_it() -> None:
    story = next(story for story in DRAWN if story.count(". ") > 5)
    index = story.index(". ", len(story) // 2) + 12
    score = stories.score([story[:index]])
    assert score.accepted_sentences == 1
    assert score.accepted_stories == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "a" * 300_000,
        "Lily " * 50_000 + ".\n\n",
        "He was very happy. " * 2_000 + "\n\n",
        '."' * 50_000,
        "\n" * 100_000,
        "\x00\x1b[31m\ud800 ☃.\n\n",
        "Lily and the Lost Ball\n" + "Once upon a time there was a " * 10_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_text_is_read_in_bounded_time_and_refused(text: str) -> None:
    score = stories.score([text])
    assert score.accepted_stories == 0


def test_nothing_to_read_has_no_shares() -> None:
    score = stories.score([])
    assert (score.accepted_sentences, score.accepted_stories, score.agreement) == (None, None, None)
    assert "none of 0 sentences" in score.line()
