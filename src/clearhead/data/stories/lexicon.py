"""Categories of words with their forms and features, read from `words.txt`.

    category person: name                  a category; words with several forms are written form/form, named here
      sex=f he=she him=her                 features of the words below, until the next such line
        Lily, Mia, Rosa                    words, commonest first: the weight falls with the rank, as in any language
      sex=m he=he him=him
        Tom, Ben

Every word has its written forms, its features, and these forms made from them: `a` ("a kite", "an owl"; with a feature
article=some, "some bread"), `Title` ("Toy Boat"), `aTitle` ("a Toy Boat"), and any form with its first letter a capital
(`A`, `He`, `Name`).
"""

import itertools
import re
from dataclasses import dataclass, field

from clearhead.data.stories.grammar import GrammarError

COMMONEST, FLATNESS = 1000, 3  # the i-th word of a block weighs COMMONEST // (i + FLATNESS)
SMALL_WORDS = {"of", "and", "the", "a", "in", "with"}  # not capitalised inside a title


@dataclass
class Category:
    """Words in order, with their features; all drawn by the same weights wherever the category is drawn from."""

    name: str
    words: list[dict[str, str]] = field(default_factory=list)  # form or feature -> its string
    weights: list[int] = field(default_factory=list)
    _strings: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def strings(self, form: str) -> tuple[str, ...]:
        """The form of every word, in order.

        Raises:
            GrammarError: some word of the category has no such form.
        """
        if form not in self._strings:
            try:
                self._strings[form] = tuple(_form(word, form) for word in self.words)
            except KeyError as missing:
                raise GrammarError(f"not every word of category '{self.name}' has a form {missing}") from None
        return self._strings[form]


def read_categories(text: str) -> dict[str, Category]:
    """The categories of a file in the notation above, by name."""
    categories: dict[str, Category] = {}
    columns: list[str] = []
    features: dict[str, str] = {}
    ranks = itertools.count()
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if header := re.fullmatch(r"category (\w+): (\w+(?:/\w+)*)", line):
            category = categories[header[1]] = Category(header[1])
            columns, features, ranks = header[2].split("/"), {}, itertools.count()
        elif "=" in line:
            features, ranks = dict(part.split("=") for part in line.split()), itertools.count()
        else:
            for entry in filter(None, (part.strip() for part in line.split(","))):
                forms = entry.split("/")
                if len(forms) != len(columns):
                    raise GrammarError(f"'{entry}' in category '{category.name}' needs the forms {'/'.join(columns)}")
                category.words.append({**features, **dict(zip(columns, forms, strict=True))})
                category.weights.append(max(1, COMMONEST // (next(ranks) + FLATNESS)))
    return categories


def _form(word: dict[str, str], form: str) -> str:
    if form in word:
        return word[form]
    if form == "a":
        return f"{word.get('article') or _article(word['name'])} {word['name']}"
    if form == "Title":
        return re.sub(r"[\w']+", lambda m: m[0] if m[0] in SMALL_WORDS else _capital(m[0]), word["name"])
    if form == "aTitle":
        return f"{_form(word, 'a').split()[0]} {_form(word, 'Title')}"
    if form[:1].isupper():
        return _capital(_form(word, form[0].lower() + form[1:]))
    raise KeyError(form)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _article(name: str) -> str:
    return "an" if re.match(r"[aeiou](?!ni[cf]|seful|ne)|hour|honest", name) else "a"
