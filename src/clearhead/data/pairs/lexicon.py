"""The words of both languages, read from nouns.txt, verbs.txt, adjectives.txt and words.txt, which explain themselves.

Whatever a language makes by rule `inflection` makes here: the German cases of a noun, the persons of a verb, English
plurals and past tenses, and the numbers up to ninety-nine. All else is written in the files.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from clearhead.data.pairs import inflection
from clearhead.data.pairs.entries import (
    AGREEMENTS,
    CASES,
    Adjective,
    Determiner,
    Entry,
    Forms,
    Modal,
    Name,
    Noun,
    Phrase,
    Preposition,
    Pronoun,
    Verb,
)

FEW = 12  # numbers up to here count most things; simple ones are those of one word


@dataclass
class Lexicon:
    """The categories that the grammar draws words from, and the small words that the languages look up by name.

    `lines` are the words as the files write them, one that stands in several categories once.
    """

    categories: dict[str, list[Entry]] = field(default_factory=dict)
    determiners: dict[str, Determiner] = field(default_factory=dict)
    prepositions: dict[str, Preposition] = field(default_factory=dict)
    phrases: dict[str, Phrase] = field(default_factory=dict)
    lines: set[str] = field(default_factory=set)

    def add(self, category: str, entry: Entry) -> None:
        """A further word of a category."""
        self.categories.setdefault(category, []).append(entry)


def read_lexicon(nouns: str, verbs: str, adjectives: str, words: str) -> Lexicon:
    """The lexicon of these four files."""
    lexicon = Lexicon()
    groups: dict[str, list[str]] = {}  # of adjectives: the classes of nouns that they suit
    for (name, group, pronoun), line in _lines(nouns, r"class (\w+): (\w+) (\w+)", lexicon):
        groups.setdefault(group, []).extend({name} - set(groups.get(group, [])))
        lexicon.add(name, _noun(line, pronoun, group == "person"))
    for (frame,), line in _lines(verbs, r"verbs (\w+)", lexicon):
        lexicon.add(f"verb.{frame}", _verb(line))
    for _, line in _lines(adjectives, "", lexicon):
        written, _, suited = line.partition(": ")
        adjective = _adjective(written)
        for group in suited.split():
            for name in dict.fromkeys((group, *groups.get(group, []))):
                lexicon.add(f"adjective.{name}", adjective)
    for (category, kind, pronoun), line in _lines(words, r"block (\w+): (\w+) ?(\w*)", lexicon):
        _add_small_word(lexicon, category, kind, pronoun, line)
    _add_numbers(lexicon)
    return lexicon


def _lines(text: str, header: str, lexicon: Lexicon) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each line of words with what the header above it says; a file without headers has an empty pattern."""
    above: tuple[str, ...] = ()
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if header and not line.startswith(" "):
            match = re.fullmatch(header, line)
            assert match, f"'{line}' is no header: {header}"
            above = match.groups()
        else:
            lexicon.lines.add(line.strip())
            yield above, line.strip()


def _sides(line: str) -> tuple[list[str], list[str]]:
    english, _, german = line.partition(" = ")
    assert german, f"'{line}' has no two sides"
    return english.split(), german.split()


def _spaced(text: str) -> str:
    return text.replace("_", " ")


def _noun(line: str, pronoun: str, person: bool) -> Noun:
    (english,), (article, *german) = _sides(line)
    gender = {"der": "m", "die": "f", "das": "n"}[article]
    nominative, genitive, plural = (german[0], *german) if gender == "f" else german
    word, _, many = english.partition("/")
    singular, plurals = inflection.german_noun(gender, nominative, genitive, plural)
    return Noun(word, many or inflection.plural_s(word), gender, singular, plurals, pronoun, person)


def _verb(line: str) -> Verb:
    english, german = _sides(line)
    particle = _spaced(english.pop()[1:]) if english[-1].startswith("+") else ""
    base = english[0]
    past = english[1] if english[1:] else inflection.past_ed(base)
    participle = english[2] if english[2:] else past
    reflexive = german[0] == "sich"
    written, third, german_past, *rest = german[1:] if reflexive else german
    perfect_sein = rest[0] == "ist"
    german_participle, *governed = rest[1:] if perfect_sein else rest
    prefix, _, infinitive = written.rpartition("|")
    be = base == "be"
    return Verb(
        english=base,
        present=("am", "is", "are") if be else (base, inflection.plural_s(base), base),
        past=("was", "was", "were") if be else (past, past, past),
        participle=participle,
        particle=particle,
        infinitive=infinitive,
        german_present=inflection.german_present(infinitive, third),
        german_past=inflection.german_past(german_past),
        german_participle=german_participle,
        prefix=prefix,
        preposition=governed[1] if governed else "",
        case=CASES[governed[2]] if governed else CASES["accusative"],
        perfect_sein=perfect_sein,
        reflexive=reflexive,
    )


def _adjective(written: str) -> Adjective:
    (english, *compared), (german, *irregular) = _sides(written)
    stems = [form.removesuffix("-") for form in irregular if form.endswith("-")]
    higher = [form for form in irregular if not form.endswith("-")]
    return Adjective(
        english,
        compared[0] if compared else f"more {english}",
        german,
        higher[0] if higher else inflection.comparative_er(german),
        stems[0] if stems else german.removesuffix("e"),
    )


def _add_small_word(lexicon: Lexicon, category: str, kind: str, pronoun: str, line: str) -> None:
    english, _, german = line.partition(" = ")
    if kind == "name":
        lexicon.add(category, Name(english, pronoun))
    elif kind == "pronoun":
        (subject, other), (forms, number) = english.split("/"), german.split(": ")
        lexicon.add(category, Pronoun(subject, other, tuple(forms.split()), AGREEMENTS[number]))
    elif kind == "determiner":
        (singular, plural), (stem, declension) = english.split("/"), german.split(": ")
        entry = Determiner(_spaced(singular), _spaced(plural), _spaced(stem), declension)
        lexicon.determiners[plural if singular == "-" else singular] = entry
    elif kind == "preposition":
        word, case = german.split()
        lexicon.prepositions[english] = Preposition(_spaced(english.partition("/")[0]), word, CASES[case])
    elif kind == "modal":
        _add_modal(lexicon, english, german)
    else:
        phrase = Phrase(english, german)
        lexicon.phrases[english] = phrase
        lexicon.add(category, phrase)


def _add_modal(lexicon: Lexicon, english: str, german: str) -> None:
    def triple(side: str) -> tuple[Forms | None, Forms | None, Forms | None]:
        now, denied, once = (None if form == "-" else tuple(form.split()) for form in side.split("/"))
        return now, denied, once

    modal = Modal(triple(english.replace("_", " ")), triple(german))
    for use, form in zip(("present", "denied", "past"), modal.english, strict=True):
        if form is not None:
            lexicon.add(f"modal.{use}", modal)


def _add_numbers(lexicon: Lexicon) -> None:
    """The numbers from 2 to 99, from those that the file lists: 2 to 19, and the tens."""
    listed = [
        [(entry.english, entry.german) for entry in lexicon.categories.pop(name) if isinstance(entry, Phrase)]
        for name in ("units", "tens")
    ]
    units, tens = listed
    numbers = list(units)
    for ten in tens:
        numbers += [ten, inflection.numeral(ten, ("one", "ein"))]
        numbers += [inflection.numeral(ten, unit) for unit in units[:8]]
    entries: list[Entry] = [Phrase(english, german) for english, german in numbers]
    simple = [entry for entry, (english, _) in zip(entries, numbers, strict=True) if "-" not in english]
    lexicon.categories |= {
        "number": entries,
        "few": entries[: FEW - 1],
        "several": entries[FEW - 1 :],
        "simple": simple,
    }
