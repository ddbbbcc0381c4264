"""An abstract grammar: what can be said, drawn at random and counted, before any language says it.

The file is a list of categories, each a weighted choice among lines:

    let TIME = now once            a variable; a header with TIME in it stands for one category for each value
    time.TIME
      3: phrase=daily              the field `phrase` is a word or node of the category `daily`
      1: det:the +attribute        the field `det` is the string 'the'; the category `attribute` adds its own fields
      2: nothing                   no field

A category is either written so or one of the lexicon's lists of words, which are all equally likely. Categories do not
reach themselves, so the grammar has finitely many sentences; `count` says how many.
"""

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clearhead.data.pairs.tree import Node


@dataclass(eq=False, slots=True)
class Line:
    """One way to make a category: fixed fields, then fields to draw; a draw without a name adds its own fields."""

    fixed: dict[str, str]
    draws: list[tuple[str | None, "PairCategory"]]


@dataclass(eq=False, slots=True)
class PairCategory:
    """Words, or lines; of the latter `chances` holds one entry for each unit of weight."""

    name: str
    words: Sequence[object] = ()
    chances: list[Line] = field(default_factory=list)
    _count: int = 0

    @property
    def lines(self) -> list[Line]:
        """Each line once."""
        return list(dict.fromkeys(self.chances))

    def fill(self, node: Node, bits: "random.Random") -> None:
        """Add the fields of one line, drawn at random, to a node."""
        chances = self.chances
        line = chances[bits.getrandbits(32) * len(chances) >> 32]
        node.update(line.fixed)
        for name, category in line.draws:
            if name is None:
                category.fill(node, bits)
            elif words := category.words:
                node[name] = words[bits.getrandbits(32) * len(words) >> 32]
            else:
                child: Node = {}
                category.fill(child, bits)
                node[name] = child

    def count(self) -> int:
        """In how many ways the category can be made."""
        if not self._count:
            self._count = len(self.words)
            for line in self.lines:
                ways = 1
                for _, category in line.draws:
                    ways *= category.count()
                self._count += ways
        return self._count


def read_grammar(text: str, words: Mapping[str, Sequence[object]]) -> PairCategory:
    """The category `sentence` of a grammar in the notation above, with all that it needs."""
    categories = {name: PairCategory(name, entries) for name, entries in words.items()}
    written = _expanded(text)
    for name in written:
        assert name not in categories, f"'{name}' is both a category of words and one of lines"
        categories[name] = PairCategory(name)
    for name, lines in written.items():
        for line in lines:
            weight, _, items = line.partition(": ")
            template = _line(name, items, categories)
            categories[name].chances += [template] * int(weight)
    return categories["sentence"]


def _line(name: str, items: str, categories: Mapping[str, PairCategory]) -> Line:
    line = Line({}, [])
    for item in items.split() if items != "nothing" else ():
        key, sign, value = re.fullmatch(r"(\w*)([:=+])(.+)", item).groups()  # type: ignore[union-attr]
        if sign == ":":
            line.fixed[key] = value
            continue
        assert value in categories, f"'{name}' draws from '{value}', which is no category"
        line.draws.append((key or None, categories[value]))
    return line


def _expanded(text: str) -> dict[str, list[str]]:
    """The lines of each category, with every variable replaced by each of its values in turn."""
    variables: dict[str, list[str]] = {}
    categories: dict[str, list[str]] = {}
    headers: list[tuple[str, dict[str, str]]] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("let "):
            name, _, values = line.removeprefix("let ").partition(" = ")
            variables[name] = [v for value in values.split() for v in variables.get(value, [value])]
        elif not line.startswith(" "):
            used = [part for part in line.split(".") if part in variables]
            choices = itertools.product(*(variables[part] for part in used))
            headers = [(line, dict(zip(used, choice, strict=True))) for choice in choices]
            for header, values_of in headers:
                name = _replaced(header, values_of)
                assert name not in categories, f"the category '{name}' is written twice"
                categories[name] = []
        else:
            for header, values_of in headers:
                categories[_replaced(header, values_of)].append(_replaced(line.strip(), values_of))
    return categories


def _replaced(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"[A-Z]+", lambda match: values.get(match[0], match[0]), text)
