"""Which sentences a grammar can write, wherever they stand, and which words of a sentence refer to something before it.

A sentence runs to a full stop, question or exclamation mark, with the quotation mark after it, before a space; a line
ends one as well. `Sentences` finds each site of the rules where a sentence can begin, and what is known there of the
variables bound before; it reads a sentence from these places on, with the walk of `parse`. So a sentence is accepted
if and only if some text of the grammar holds it, for some words of all variables.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from clearhead.data.stories.grammar import (
    Alternatives,
    Draw,
    FixedText,
    Grammar,
    Item,
    Law,
    Mention,
    RuleCall,
    Template,
)
from clearhead.data.stories.knowledge import Knowledge, Table
from clearhead.data.stories.parse import State, read
from clearhead.data.stories.sites import Site, SiteFinder
from clearhead.data.stories.unambiguous import tokens

END = re.compile(r'(?<=[.!?]) |(?<=[.!?]") |\n')
ENDED = re.compile(r'[.!?]"?$')


def cut(text: str) -> list[str]:
    """The sentences of a text, without the blanks between them."""
    return [sentence for sentence in END.split(text) if sentence]


@dataclass(frozen=True, slots=True)
class Reference:
    """A word that means what a variable was bound to before the sentence.

    Args:
        variable: its name in the rule where the sentence begins.
        possible: the words of its category, by index, that the text allows.
        is_name: whether it is the word itself, or another form that several words share (she, it).
    """

    variable: str
    possible: Table
    is_name: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a sentence: what it refers to, and the variables that it introduces, with their words."""

    references: tuple[Reference, ...] = ()
    introduced: tuple[tuple[str, int], ...] = ()


class _Sentence:
    """A sentence with its tokens, and the blanks that can follow it."""

    def __init__(self, text: str, firsts: "_FirstTokens") -> None:
        self.text, self.firsts = text, firsts
        self.blanks = " \n" if ENDED.search(text) else "\n"
        self.tokens: dict[int, str] = {}
        position = 0
        for token in tokens(text):
            self.tokens[position] = token
            position += len(token)

    def goes_on(self, string: str, position: int) -> bool:
        """Whether the string stands at the position, or begins there and goes on with the blank after the sentence."""
        rest = len(self.text) - position
        if len(string) <= rest:
            return self.text.startswith(string, position)
        return self.text.startswith(string[:rest], position) and string[rest] in self.blanks

    def words(self, strings: tuple[str, ...], position: int) -> Iterator[tuple[str, Table]]:
        """Those of the strings that stand at the position, each with the words that are written so."""
        for string, possible in _by_first_token(strings).get(self.tokens.get(position, ""), ()):
            if self.goes_on(string, position):
                yield string, possible


@dataclass(frozen=True, slots=True)
class _Reached(State):
    """A sentence read up to a position, in the middle of a text.

    `names` are the rule's variables, by the names that they have in `knowledge`; what has been read narrows that down.
    """

    sentence: _Sentence
    position: int
    names: Mapping[str, str]
    knowledge: Knowledge
    reading: Reading

    @property
    def done(self) -> bool:  # type: ignore[override]
        return self.position > len(self.sentence.text)

    def write(self, string: str) -> "_Reached | None":
        if not self.sentence.goes_on(string, self.position):
            return None
        return _Reached(self.sentence, self.position + len(string), self.names, self.knowledge, self.reading)

    def mention(self, variable: str, strings: tuple[str, ...]) -> Iterator["_Reached"]:
        name = self.names[variable]
        for string, possible in self.sentence.words(strings, self.position):
            if known := self.knowledge.restricted((name,), possible):
                reading = self.reading
                if not name.startswith(_OWN):
                    reference = Reference(
                        name.lstrip(_OUTER).partition(" ")[0], possible, len({*strings}) == len(strings)
                    )
                    reading = Reading((*reading.references, reference), reading.introduced)
                yield _Reached(self.sentence, self.position + len(string), self.names, known, reading)

    def draw(self, variable: str | None, strings: tuple[str, ...], law: Law) -> Iterator["_Reached"]:
        for string, outcomes in self.sentence.words(strings, self.position):
            outcome = int(outcomes.argmax())  # a draw tells all words apart
            known, names, reading = self._with(law, outcome), self.names, self.reading
            if known and variable is not None:
                name = f"{_OWN}{variable} {self.position}"
                known, names = known.restricted((name,), outcomes), {**names, variable: name}
                reading = Reading(reading.references, (*reading.introduced, (variable, outcome)))
            if known:
                yield _Reached(self.sentence, self.position + len(string), names, known, reading)

    def choose(self, law: Law) -> Iterator[tuple[int, "_Reached"]]:
        for outcome in range(len(law.weights)):
            if known := self._with(law, outcome):
                yield outcome, self if known is self.knowledge else replace(self, knowledge=known)

    def may_read(self, template: Template) -> bool:
        firsts = self.sentence.firsts.of(template)
        position = self.position
        if position < len(self.sentence.text):
            return "" in firsts or self.sentence.tokens.get(position, "") in firsts
        return not firsts.isdisjoint(("", *self.sentence.blanks))

    def call(self, takes: Iterable[tuple[str, str]]) -> "_Reached":
        return replace(self, names={own: self.names[callers] for own, callers in takes})

    def back(self, caller: "_Reached", gives: Iterable[tuple[str, str]]) -> "_Reached":
        return replace(self, names={**caller.names, **{callers: self.names[own] for own, callers in gives}})

    def _with(self, law: Law, outcome: int) -> Knowledge | None:
        """What is known if the law has this outcome."""
        known: Knowledge | None = self.knowledge
        for mask in law.masks:
            variables = tuple(self.names[variable] for variable in mask.variables)
            known = known and known.restricted(variables, mask.allowed[..., outcome])
        return known


_OWN = "+"  # begins the name of a variable that the sentence itself binds
_OUTER = "^"  # begins the name of one that a caller of the rule has, in which the sentence began


class Sentences:
    """The sentences of a grammar's texts; `_starts` are the places where one begins, by its first token, if any."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._firsts = _FirstTokens(grammar)
        finder = SiteFinder(grammar)
        finder.walk(grammar.rules[grammar.start], Knowledge(), frozenset(("\n",)))
        first = Site(grammar.start, (grammar.rules[grammar.start].body,), (), Knowledge())
        self._starts: dict[str, list[Site]] = {}
        for site in (first, *finder.starts.values()):
            for token in self._firsts.of(site.rest):
                self._starts.setdefault(token, []).append(site)
        self._after_calls = {rule: tuple(calls.values()) for rule, calls in finder.after_calls.items()}

    def readings(self, sentence: str) -> list[Reading]:
        """Every way in which some text of the grammar holds the sentence as one; none if no text does."""
        read_from = _Sentence(sentence, self._firsts)
        first = read_from.tokens.get(0, "")
        ends: list[_Reached] = []
        for site in (*self._starts.get(first, ()), *self._starts.get("", ())):
            state = _Reached(read_from, 0, {name: name for name in site.bound}, site.knowledge, Reading())
            ends += self._finished(site, state)
        return [state.reading for state in ends if state.knowledge.possible()]

    def _finished(self, site: Site, start: _Reached) -> Iterator[_Reached]:
        for state in read(self.grammar, site.rest, start):
            if state.done:
                yield state
                continue
            for caller, call in self._after_calls.get(site.rule, ()):  # the rule ends within the sentence
                if outside := _returned(state, caller, call):
                    yield from self._finished(caller, outside)


def _returned(state: _Reached, caller: Site, call: RuleCall) -> _Reached | None:
    """The state after a rule's end, in one of the rules that call it, of which nothing else is known yet."""
    own = {callers: state.names[own] for own, callers in call.names}
    names = {name: own.get(name, f"{_OUTER}{name} {caller.rule}") for name in caller.bound}
    known: Knowledge | None = state.knowledge
    for variables, table in caller.knowledge.renamed(names).tables.items():
        known = known and known.restricted(variables, table)
    return None if known is None else replace(state, names=names, knowledge=known)


class _FirstTokens:
    """The tokens that a template's text may begin with; an empty one if there may be no text."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.known: dict[Template, frozenset[str]] = {}

    def of(self, items: Template) -> frozenset[str]:
        """Those of a template, found out once."""
        if items not in self.known:
            firsts = frozenset([""])
            for item in items:
                firsts = (firsts - {""}) | self._of_item(item)
                if "" not in firsts:
                    break
            self.known[items] = firsts
        return self.known[items]

    def _of_item(self, item: Item) -> frozenset[str]:
        match item:
            case FixedText(text):
                return frozenset(tokens(text)[:1])
            case Mention(_, strings) | Draw(_, strings, _):
                return frozenset(_by_first_token(strings))
            case Alternatives(_, options):
                return frozenset().union(*map(self.of, options))
            case RuleCall(rule, _):
                return self.of((self.grammar.rules[rule].body,))


@functools.lru_cache(maxsize=1000)
def _by_first_token(strings: tuple[str, ...]) -> dict[str, list[tuple[str, Table]]]:
    """Each different string, with the words that have it, by its first token."""
    array = np.array(strings)
    words: dict[str, list[tuple[str, Table]]] = {}
    for string in dict.fromkeys(strings):
        words.setdefault(tokens(string)[0], []).append((string, array == string))
    return words
