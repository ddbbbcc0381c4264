"""German noun phrases: article, adjective and noun agree in gender, number and case.

The ending that shows the case stands once. Where the determiner shows it, adjectives are weak (der alte Mann); where
there is none, they show it themselves (alter Wein); after ein, kein and mein it is mixed (ein alter Mann, einem alten
Mann). Duden, Die Grammatik, "Flexion der Adjektive".
"""

from collections.abc import Callable

from clearhead.data.pairs.entries import ACCUSATIVE, GENITIVE, NOMINATIVE, Noun
from clearhead.data.pairs.tree import NOTHING_BEFORE, Before, Node, Phrase, pronoun_of
from clearhead.data.pairs.vocabulary import lexicon

Relative = Callable[[Node, Node], str]
Table = dict[str, tuple[str, str, str, str]]  # m, f, n or p (plural) -> an ending for each case

ARTICLE: Table = {
    "m": ("der", "den", "dem", "des"),
    "f": ("die", "die", "der", "der"),
    "n": ("das", "das", "dem", "des"),
    "p": ("die", "die", "den", "der"),
}
RELATIVE: Table = {
    "m": ("der", "den", "dem", "dessen"),
    "f": ("die", "die", "der", "deren"),
    "n": ("das", "das", "dem", "dessen"),
    "p": ("die", "die", "denen", "deren"),
}
DETERMINER: Table = {  # dieser, jeder, welcher; viele, einige
    "m": ("er", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("es", "es", "em", "es"),
    "p": ("e", "e", "en", "er"),
}
POSSESSIVE: Table = {**DETERMINER, "m": ("", "en", "em", "es"), "n": ("", "", "em", "es")}  # ein, kein, mein
ENDINGS: dict[str, Table] = {
    "weak": {
        "m": ("e", "en", "en", "en"),
        "f": ("e", "e", "en", "en"),
        "n": ("e", "e", "en", "en"),
        "p": ("en", "en", "en", "en"),
    },
    "mixed": {
        "m": ("er", "en", "en", "en"),
        "f": ("e", "e", "en", "en"),
        "n": ("es", "es", "en", "en"),
        "p": ("en", "en", "en", "en"),
    },
    "strong": {**DETERMINER, "m": ("er", "en", "em", "en"), "n": ("es", "es", "em", "en")},
}
CONTRACTED = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("an", "das"): "ans",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
}
THIRD_PERSON = {"m": ("er", "ihn"), "f": ("sie", "sie"), "n": ("es", "es")}
AGAIN = {"he": "er", "she": "sie", "we": "wir", "they": "sie"}  # the subject of the clause before
ASKED = {"who": ("wer", "wen", "wem"), "what": ("was", "was")}


def gender(node: Node) -> str:
    """m, f, n or, of the plural, p."""
    noun: Noun = node["noun"]
    return "p" if "plural" in node else noun.gender


def noun_phrase(
    phrase: Phrase,
    case: int,
    before: Before = NOTHING_BEFORE,
    *,
    relative: Relative | None = None,
    none: bool = False,
) -> str:
    """A noun phrase in a case, with its relative clause between commas if `relative` writes one.

    `none` says that there are none of it (keine Katzen).
    """
    if isinstance(phrase, str):
        return _again(phrase, case, before)
    if "pronoun" in phrase:
        return str(phrase["pronoun"].german[case])
    if "name" in phrase:
        return str(phrase["name"].english)
    if "first" in phrase:
        return " und ".join(noun_phrase(phrase[key], case) for key in ("first", "second"))
    written = _declined(phrase, case, none=none)
    owner = phrase.get("of") or phrase.get("owner", {})
    if "noun" in owner:
        written += " " + noun_phrase(owner, GENITIVE)
    return written + ", " + relative(phrase["relative"], phrase) + "," if relative and "relative" in phrase else written


def is_pronoun(phrase: Phrase) -> bool:
    """Whether it stands with the pronouns, before all else."""
    return isinstance(phrase, str) or "pronoun" in phrase


def is_indefinite(phrase: Phrase) -> bool:
    """Whether kein denies it: a cat, cats, milk."""
    if isinstance(phrase, str) or "noun" not in phrase or "owner" in phrase or "number" in phrase:
        return False
    return bool(phrase.get("det", "a") == "a")


def prepositional(node: Node) -> str:
    """A preposition and what comes after it; in, an, auf and their like take the accusative where something moves."""
    preposition = lexicon().prepositions[node["preposition"]]
    case = ACCUSATIVE if "moved" in node else preposition.case
    if "city" in node:
        return f"{preposition.german} {node['city'].german}"
    landmark = node["landmark"]
    written = noun_phrase(landmark, case)
    return contracted(preposition.german, written) if has_article(landmark) else f"{preposition.german} {written}"


def has_article(phrase: Phrase) -> bool:
    """Whether it begins with the definite article."""
    if isinstance(phrase, str):
        return False
    return bool(phrase.get("det") == "the" or "noun" in phrase.get("owner", {}))


def contracted(preposition: str, written: str) -> str:
    """A preposition before the definite article: im Garten, zur Brücke."""
    article, _, rest = written.partition(" ")
    both = CONTRACTED.get((preposition, article))
    return f"{both} {rest}" if both else f"{preposition} {written}"


def _again(phrase: str, case: int, before: Before) -> str:
    if phrase in ASKED:
        return ASKED[phrase][case]
    meant = before.resolve(phrase)
    word = pronoun_of(meant)
    if word == "it":
        return "es" if isinstance(meant, str) else THIRD_PERSON[meant["noun"].gender][case]
    assert case == NOMINATIVE or word == "they", "people are named again as subjects only"
    return AGAIN[word]


def _declined(node: Node, case: int, *, none: bool) -> str:
    kind, noun = gender(node), node["noun"]
    article, declension = determiner(node, kind, case, none=none)
    words = [article]
    if "number" in node:
        words.append(node["number"].german)
    if "degree" in node:
        words.append(lexicon().phrases[node["degree"]].german)
    ending = ENDINGS[declension][kind][case]
    words += [node[key].stem + ending for key in ("adjective", "hue") if key in node]
    words.append((noun.plural if kind == "p" else noun.singular)[case])
    return " ".join(filter(None, words))


def determiner(node: Node, kind: str, case: int, *, none: bool = False) -> tuple[str, str]:
    """What stands before the adjectives, and their declension after it."""
    name = "no" if none else node.get("det", "")
    if "owner" in node and "name" in node["owner"]:
        return f"{node['owner']['name'].english}s", "strong"
    if has_article(node):
        return ARTICLE[kind][case], "weak"
    if name in ("", "whose") or (name == "a" and kind == "p"):
        return "", "strong"
    entry = lexicon().determiners[name]
    endings = POSSESSIVE if entry.declension == "mixed" else DETERMINER
    return entry.stem + endings[kind][case], entry.declension
