"""The corpus `pairs`: agreement and word order by the tests' own rules, English grammar, and what all of it shows."""

import itertools
import re
from collections.abc import Callable
from functools import cache

import pytest
from german_checker import nouns_in
from german_order import misplaced

from clearhead.data import pairs
from clearhead.data.pairs import german_clauses, german_nouns
from clearhead.data.pairs.entries import Adjective, Verb
from clearhead.data.pairs.tree import Before, Node
from clearhead.data.pairs.vocabulary import lexicon

ENTRIES = [entry for entries in lexicon().categories.values() for entry in entries]
STEMS = {entry.stem for entry in ENTRIES if isinstance(entry, Adjective)}
VERBS = [entry for entry in ENTRIES if isinstance(entry, Verb)]
FINITE = {form for verb in VERBS for form in (*verb.german_present, *verb.german_past) if form}
PREFIXES = {verb.prefix for verb in VERBS}


@cache
def sample() -> list[tuple[str, str]]:
    return list(itertools.islice(pairs.sentence_pairs("train", seed=11), 5000))


def disagreeing(sentences: list[str]) -> list[str]:
    return [sentence for sentence in sentences if not all(noun.agrees() for noun in nouns_in(sentence, STEMS))]


def disordered(sentences: list[str]) -> list[str]:
    verdicts = [(sentence, misplaced(sentence, FINITE, PREFIXES)) for sentence in sentences]
    return [f"{sentence} {wrong}" for sentence, wrong in verdicts if wrong]


def drawn_again() -> list[str]:
    return [translation for _, translation in itertools.islice(pairs.sentence_pairs("train", seed=11), 1000)]


# ---------------------------------------------------------------- agreement


def test_every_noun_agrees_with_what_stands_before_it() -> None:
    sentences = [translation for _, translation in sample()]
    assert disagreeing(sentences) == []
    nouns = [noun for sentence in sentences for noun in nouns_in(sentence, STEMS)]
    assert len(nouns) > 2500
    assert sum(noun.preposition != "" for noun in nouns) > 300
    assert {ending for noun in nouns for ending in noun.endings} >= {"e", "en", "er", "es"}


@pytest.mark.parametrize(
    "sentence",
    [
        "Der alter Mann schläft.",
        "Die Frau sieht den Junge.",
        "Sie hilft den Kinder.",
        "Sie trinkt mit das Mädchen Milch.",
        "Er geht zum alten Brücke.",
        "Ein kleine Auto steht vor dem Haus.",
        "Er wartet für dem Bus und für dem Hund.",
        "Das Dach des Haus ist alt.",
        "Jedes Frau schläft.",
        "Annas alten Hund schläft in der kleine Küche.",
        "Einen Mann sang.",
    ],
)
def test_the_check_of_agreement_finds_a_wrong_sentence(sentence: str) -> None:
    assert disagreeing([sentence]) == [sentence]


@pytest.mark.parametrize(
    ("declension", "kind", "case", "ending"),
    [
        ("weak", "m", 1, "e"),
        ("weak", "p", 0, "e"),
        ("mixed", "n", 1, "e"),
        ("mixed", "m", 0, "e"),
        ("strong", "p", 1, "en"),
    ],
)
def test_a_wrong_cell_of_a_table_shows(
    monkeypatch: pytest.MonkeyPatch, declension: str, kind: str, case: int, ending: str
) -> None:
    row = list(german_nouns.ENDINGS[declension][kind])
    row[case] = ending
    monkeypatch.setitem(german_nouns.ENDINGS[declension], kind, tuple(row))
    assert disagreeing(drawn_again())


@pytest.mark.parametrize(("kind", "case", "form"), [("f", 2, "die"), ("m", 1, "der"), ("p", 2, "die"), ("n", 3, "dem")])
def test_a_wrong_article_shows(monkeypatch: pytest.MonkeyPatch, kind: str, case: int, form: str) -> None:
    row = list(german_nouns.ARTICLE[kind])
    row[case] = form
    monkeypatch.setitem(german_nouns.ARTICLE, kind, tuple(row))
    assert disagreeing(drawn_again())


# ---------------------------------------------------------------- word order


def test_every_verb_stands_where_it_must() -> None:
    assert disordered([translation for _, translation in sample()[:2000]]) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Gestern der Mann schlief.",
        "Sie gestern schlief.",
        "Wenn es regnet, der Mann schläft.",
        "Er schläft, weil er ist müde.",
        "Sie sagt, dass der Mann anruft Peter.",
        "Der Mann anruft und er ruft die Frau.",
        "Der Mann lud gestern die Frau.",
        "Anna hat gelesen das Buch.",
        "Um drei Uhr Anna liest.",
    ],
)
def test_the_check_of_word_order_finds_a_wrong_sentence(sentence: str) -> None:
    assert disordered([sentence])


def _verb_third(node: Node, *before: Before) -> str:
    rest = {key: value for key, value in node.items() if key != "fronted"}
    return "es gibt" if "existing" in node else german_clauses.main_clause(rest, *before)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("subordinate", lambda node, *before, **_: german_clauses.main_clause({**node, "subject": "it"}, *before)),
        ("_finite_first", _verb_third),
        ("_verb_last", lambda node, before: " ".join(german_clauses._verb(node, before))),
    ],
)
def test_a_broken_order_shows(monkeypatch: pytest.MonkeyPatch, name: str, replacement: Callable[..., str]) -> None:
    monkeypatch.setattr(german_clauses, name, replacement)
    assert disordered(drawn_again())


# ---------------------------------------------------------------- English


def test_english_articles_and_verbs_agree() -> None:
    bases = {verb.english for verb in VERBS if verb.past[0] != verb.english} - {"be"}
    for english, _ in sample():
        assert not re.search(r"\b[Aa] (?!useful)[aeiou]", english), english
        assert not re.search(r"\b[Aa]n (?![aeiou])", english), english
        assert not re.match(rf"(He|She|It) ({'|'.join(bases)})\b", english), english
        assert not re.match(r"(He|She|It) (are|were|have|do)\b", english), english
        assert not re.match(r"(We|They) (is|was|has|does)\b", english), english
        for base in re.findall(r"(?:does|did|do|will|can|cannot|must|should) not (\w+)", english):
            assert base in bases | {"be", "read", "cut", "put", "cost", "want", "have", "like"}, english


# ---------------------------------------------------------------- what the corpus shows

PHENOMENA = {
    "separable prefix at the end": (r".", r"\b(rief|lud|holte|ruft|lädt|holt)\b.* (an|ein|ab)[.,?]"),
    "separable verb whole at the end": (
        r".",
        r"\b(anruft|anrief|einlud|abholte|einschaltete|auszuschalten|abzuholen)\b",
    ),
    "kein": (r"\bnot\b", r"\bkeine?[nmrs]?\b"),
    "nicht": (r"\bnot\b", r"\bnicht\b"),
    "weak noun": (r"\bboys?\b", r"\bJungen\b"),
    "genitive": (r"'s ", r"\b(des \w+s|der \w+in)\b"),
    "genitive of a name": (r"Anna's", r"\bAnnas\b"),
    "dative plural": (r".", r"\b(den|mit) \w+ern\b"),
    "relative, dative plural": (r"\bwhom\b", r", denen "),
    "relative, genitive": (r"\bwhose\b", r", de(ss|r)en "),
    "relative after a preposition": (
        r"\bwhom\b.*\b(with|for|about|of)\b",
        r", (mit|für|über|auf|an|von) (dem|der|den|die) ",
    ),
    "because": (r" because ", r", weil "),
    "that": (r" that ", r", dass "),
    "if": (r"^If ", r"^Wenn .*, "),
    "when": (r"\b[Ww]hen\b", r"\b[Aa]ls\b"),
    "whether": (r" whether ", r", ob "),
    "infinitive with zu": (r" to ", r", .*\bzu \w+n\."),
    "perfect with sein": (r" (has|have) (gone|run|followed|arrived|stayed)", r"\b(ist|sind|bin) "),
    "future": (r"\bwill\b", r"\b(wird|werden|werde)\b"),
    "must not": (r"\bmust not\b", r"\b(darf|dürfen) "),
    "numeral": (r"twenty-one|forty-three|sixty-seven", r"(ein|drei|sieben)und(zwanzig|vierzig|sechzig)"),
    "contraction": (r".", r"\b(im|am|ins|zum|zur|vom)\b"),
    "reflexive": (r"\bremember", r"\bsich .*\ban\b"),
    "comparative": (r"(older|bigger|more expensive) than", r"(älter|größer|teurer) als"),
    "yes or no": (r"^(Does|Do|Did) ", r"\?$"),
    "asked with a preposition": (r"^What .*\bof\?", r"^(Woran|Wovon) "),
    "pronouns": (r"\b(him|her|us|me)\b", r"\b(ihn|ihm|ihr|uns|mich|mir)\b"),
    "strong adjective": (r"\b(drinks?|drank) [a-z]+ (milk|wine)\b", r"(e Milch|en Wein)\b"),
    "gern": (r"\blikes? to\b", r"\bgern\b"),
}


@pytest.mark.parametrize("name", PHENOMENA)
def test_it_occurs(name: str) -> None:
    english, translation = (re.compile(pattern) for pattern in PHENOMENA[name])
    assert sum(bool(english.search(source) and translation.search(target)) for source, target in sample()) >= 3
