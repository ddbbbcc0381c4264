"""What the lexicon knows of a word, in both languages."""

from dataclasses import dataclass

Forms = tuple[str, ...]

NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)
CASES = {"nominative": NOMINATIVE, "accusative": ACCUSATIVE, "dative": DATIVE, "genitive": GENITIVE}

FIRST, THIRD, PLURAL = range(3)  # what a verb agrees with: I; he, she, it, a noun; we, they, nouns
AGREEMENTS = {"first": FIRST, "third": THIRD, "plural": PLURAL}


@dataclass(frozen=True, eq=False, slots=True)
class Noun:
    """A noun; `gender` is m, f or n, and the German forms are in the order of the cases.

    `pronoun` is what English calls one of them later (he, she, it); `person` whether it is a who rather than a what.
    A mass (milk) has no plural.
    """

    english: str
    english_plural: str
    gender: str
    singular: Forms
    plural: Forms
    pronoun: str
    person: bool


@dataclass(frozen=True, eq=False, slots=True)
class Verb:
    """A verb; its finite forms are in the order of the agreements.

    `particle` follows the English verb (look *for*), `prefix` parts from the German one (*an*rufen), `preposition` and
    `case` are those of a German prepositional object. `perfect_sein` says that its perfect takes sein, not haben.
    """

    english: str
    present: Forms
    past: Forms
    participle: str
    particle: str
    infinitive: str
    german_present: Forms
    german_past: Forms
    german_participle: str
    prefix: str
    preposition: str
    case: int
    perfect_sein: bool
    reflexive: bool

    @property
    def key(self) -> str:
        """The English verb with its particle, which no other verb has."""
        return f"{self.english} {self.particle}".strip()


@dataclass(frozen=True, eq=False, slots=True)
class Adjective:
    """An adjective; `stem` is what the German endings are added to."""

    english: str
    comparative: str
    german: str
    german_comparative: str
    stem: str


@dataclass(frozen=True, eq=False, slots=True)
class Name:
    """A person's first name, the same in both languages."""

    english: str
    pronoun: str


@dataclass(frozen=True, eq=False, slots=True)
class Pronoun:
    """A personal pronoun: English subject and object, German nominative, accusative, dative."""

    english: str
    english_object: str
    german: Forms
    agreement: int


@dataclass(frozen=True, eq=False, slots=True)
class Determiner:
    """An article or what stands in its place; after it adjectives are declined `weak`, `mixed` or `strong`."""

    english: str
    english_plural: str
    stem: str
    declension: str


@dataclass(frozen=True, eq=False, slots=True)
class Preposition:
    """A preposition and its German case; English may write two German prepositions alike (to Berlin, to the lake)."""

    english: str
    german: str
    case: int


@dataclass(frozen=True, eq=False, slots=True)
class Phrase:
    """Words that never change, or that leave a hole {} for one word."""

    english: str
    german: str


@dataclass(frozen=True, eq=False, slots=True)
class Modal:
    """A modal verb: English and German now, denied now, and once; None where it is not used so.

    English is the auxiliary and what follows it, or 'do' and a verb that takes do. German is singular, plural.
    """

    english: tuple[Forms | None, Forms | None, Forms | None]
    german: tuple[Forms | None, Forms | None, Forms | None]


Entry = Noun | Verb | Adjective | Name | Pronoun | Determiner | Preposition | Phrase | Modal
