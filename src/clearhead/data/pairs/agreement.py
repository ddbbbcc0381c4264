"""Whether German noun phrases agree in gender, number and case, in any text, from the tables that decline them."""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from clearhead.data.pairs.entries import (
    ACCUSATIVE,
    DATIVE,
    GENITIVE,
    NOMINATIVE,
    Adjective,
    Name,
    Noun,
    Phrase,
    Pronoun,
    Verb,
)
from clearhead.data.pairs.german_nouns import ARTICLE, CONTRACTED, ENDINGS, RELATIVE, determiner
from clearhead.data.pairs.grammar import PairCategory
from clearhead.data.pairs.vocabulary import lexicon, sentences

T = TypeVar("T")
Reading = tuple[str, int]  # m, f, n or p (plural), and a case
CASES = NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE


@dataclass(frozen=True, slots=True)
class _Forms:
    """Every form of every word that a noun phrase can hold -> what it can be.

    `determiners` lead to the declension of the adjectives after them; the empty one is none at all.
    """

    nouns: Mapping[str, frozenset[Reading]]
    determiners: Mapping[str, frozenset[tuple[str, Reading]]]
    adjectives: Mapping[str, frozenset[str]]  # -> stems
    between: frozenset[str]  # numbers, degrees
    owners: frozenset[str]  # names in the genitive
    prepositions: Mapping[str, frozenset[int]]
    personal: frozenset[str]  # pronouns
    relative: frozenset[str]


def agreements(sentence: str) -> Iterator[bool]:
    """For each noun of the corpus in a German sentence, whether it agrees with the words that belong to it."""
    forms = _forms()
    words = ["", "", *re.findall(r"\w+|[,.?]", sentence)]
    if len(words) > 2 and words[2] not in forms.nouns:
        words[2] = words[2][0].lower() + words[2][1:]
    return (_agrees(forms, words, index) for index, word in enumerate(words) if word in forms.nouns)


def _agrees(forms: _Forms, words: list[str], noun: int) -> bool:
    """Whether some gender, number and case fits the noun at an index, its adjectives, determiner and preposition."""
    start = noun
    while words[start - 1] in forms.adjectives:
        start -= 1
    adjectives = words[start:noun]
    while words[start - 1] in forms.between:
        start -= 1
    if words[start - 1] in forms.owners:
        start -= 1
    before, earlier = words[start - 1], words[start - 2]
    attempts = [(article, preposition) for (preposition, article), short in CONTRACTED.items() if short == before]
    if before in forms.determiners and before and words[start] not in forms.owners:
        attempts.append((before, earlier))
        opening = words[start - 3] if earlier in forms.prepositions else earlier
        relative = before in forms.relative and opening == ","
        if relative or before in forms.personal:  # it may stand alone: der Äpfel isst, gibt ihr Äpfel
            attempts.append(("", ""))
    return any(_fits(forms, words[noun], adjectives, *attempt) for attempt in attempts or [("", before)])


def _fits(forms: _Forms, noun: str, adjectives: list[str], article: str, preposition: str) -> bool:
    cases = forms.prepositions.get(preposition, frozenset(CASES))
    return any(
        reading in forms.nouns[noun]
        and reading[1] in cases
        and all(
            word.removesuffix(ENDINGS[declension][reading[0]][reading[1]]) in forms.adjectives[word]
            for word in adjectives
        )
        for declension, reading in forms.determiners[article]
    )


@functools.cache
def _forms() -> _Forms:
    entries = list(itertools.chain.from_iterable(lexicon().categories.values()))
    nouns: dict[str, set[Reading]] = {}
    adjectives: dict[str, set[str]] = {}
    endings = {ending for table in ENDINGS.values() for row in table.values() for ending in row}
    for entry in entries:
        if isinstance(entry, Noun):
            for case in CASES:
                nouns.setdefault(entry.singular[case], set()).add((entry.gender, case))
                if entry.plural:
                    nouns.setdefault(entry.plural[case], set()).add(("p", case))
        elif isinstance(entry, Adjective):
            for ending in endings:
                adjectives.setdefault(entry.stem + ending, set()).add(entry.stem)
    grades = [lexicon().phrases[name].german for name in ("very", "too")]
    numbers = [entry.german for entry in lexicon().categories["number"] if isinstance(entry, Phrase)]
    relative = {form for row in RELATIVE.values() for form in row}
    return _Forms(
        nouns=_frozen(nouns),
        determiners=_frozen(_determiners()),
        adjectives=_frozen(adjectives),
        between=frozenset([*grades, *numbers]),
        owners=frozenset(f"{entry.english}s" for entry in entries if isinstance(entry, Name)),
        prepositions=_frozen(_prepositions(entries)),
        personal=frozenset(form for entry in entries if isinstance(entry, Pronoun) for form in entry.german),
        relative=frozenset(relative),
    )


def _frozen(sets: Mapping[str, set[T]]) -> dict[str, frozenset[T]]:
    return {form: frozenset(members) for form, members in sets.items()}


def _determiners() -> dict[str, set[tuple[str, Reading]]]:
    forms: dict[str, set[tuple[str, Reading]]] = {}
    for kind, case, name in itertools.product(ARTICLE, CASES, ("", *lexicon().determiners)):
        entry = lexicon().determiners.get(name)
        if entry is None or (entry.english_plural if kind == "p" else entry.english) != "-" or name == "a":
            written, declension = determiner({"det": name}, kind, case)
            forms.setdefault(written, set()).add((declension, (kind, case)))
    return forms


def _prepositions(entries: Iterable[object]) -> dict[str, set[int]]:
    """The cases after each preposition: its own, its verbs', and the accusative where something moves."""
    cases: dict[str, set[int]] = {}
    for preposition in lexicon().prepositions.values():
        cases.setdefault(preposition.german, set()).add(preposition.case)
    for entry in entries:
        if isinstance(entry, Verb) and entry.preposition:
            cases.setdefault(entry.preposition, set()).add(entry.case)
    for fixed in _fixed_fields(sentences(), set()):
        if "moved" in fixed:
            cases[lexicon().prepositions[fixed["preposition"]].german].add(ACCUSATIVE)
    return cases


def _fixed_fields(category: PairCategory, visited: set[PairCategory]) -> Iterator[Mapping[str, str]]:
    """The fixed fields of every line that a category reaches."""
    if category not in visited:
        visited.add(category)
        for line in category.lines:
            yield line.fixed
            for _, drawn in line.draws:
                yield from _fixed_fields(drawn, visited)
