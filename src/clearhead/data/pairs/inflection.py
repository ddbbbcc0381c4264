"""What English and German make by rule: plurals, persons, tenses, cases, comparatives, numbers.

Irregular forms are not known here; the lexicon's files give them.
"""

import re

from clearhead.data.pairs.entries import Forms


def plural_s(word: str) -> str:
    """An English noun's plural or a verb's third person: cat, cats; box, boxes; try, tries; go, goes."""
    if re.search(r"(s|x|z|ch|sh|o)$", word) and not re.search(r"io$|oo$", word):
        return word + "es"
    return re.sub(r"(?<=[^aeiou])y$", "ie", word) + "s"


def past_ed(word: str) -> str:
    """A regular English past: cook, cooked; taste, tasted; try, tried."""
    return re.sub(r"(?<=[^aeiou])y$", "i", word).removesuffix("e") + "ed"


def article(following: str) -> str:
    """The English indefinite article before these words: a cat, an owl, an honest man, a useful rope."""
    return "an" if re.match(r"(?!useful)[aeiou]|honest", following) else "a"


def german_noun(gender: str, nominative: str, genitive: str, plural: str) -> tuple[Forms, Forms]:
    """A German noun's singular and plural in the order of the cases; a plural '-' is none.

    A weak masculine has its genitive's -n in the accusative and dative too: der Junge, den Jungen. The dative plural
    adds -n unless there is one, or an -s: den Hunden, den Frauen, den Autos.
    """
    oblique = genitive if gender == "m" and genitive.endswith("n") else nominative
    singular = (nominative, oblique, oblique, genitive)
    if plural == "-":
        return singular, ()
    dative = plural if plural.endswith(("n", "s")) else plural + "n"
    return singular, (plural, plural, dative, plural)


def german_present(infinitive: str, third: str) -> Forms:
    """ich, er, wir; the plural is the infinitive, and but for ich bin the grammar says no ich in the present."""
    return ("bin", third, "sind") if infinitive == "sein" else ("", third, infinitive)


def german_past(singular: str) -> Forms:
    """ich, er, wir: machte, machte, machten; las, las, lasen."""
    return singular, singular, singular + ("n" if singular.endswith("e") else "en")


def comparative_er(german: str) -> str:
    """A German comparative without umlaut: klein, kleiner; müde, müder."""
    return german.removesuffix("e") + "er"


def numeral(tens: tuple[str, str], units: tuple[str, str]) -> tuple[str, str]:
    """twenty and three in both languages: twenty-three, dreiundzwanzig."""
    return f"{tens[0]}-{units[0]}", f"{units[1]}und{tens[1]}"
