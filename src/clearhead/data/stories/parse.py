"""Reading with a grammar: the walk over its rules, and the probability of a text over all ways to derive it.

The walk is written once, for any `State`. What a state knows of the variables is its own affair: here each variable
is bound to one word, since a story is read from its beginning; `sentences` begins in the middle.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self, TypeVar

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
    Values,
)


class State(ABC):
    """How far a text is read, and what is known of the variables. States do not change; reading makes new ones."""

    done: bool = False  # whether nothing that follows matters any more

    @abstractmethod
    def write(self, string: str) -> Self | None:
        """The state after the string, or None if the text goes on otherwise."""

    @abstractmethod
    def mention(self, variable: str, strings: tuple[str, ...]) -> Iterator[Self]:
        """The states after a form of the variable's word."""

    @abstractmethod
    def draw(self, variable: str | None, strings: tuple[str, ...], law: Law) -> Iterator[Self]:
        """The states after a word that the law allows."""

    @abstractmethod
    def choose(self, law: Law) -> Iterator[tuple[int, Self]]:
        """The outcomes that the law allows, each with the state that has chosen it."""

    def may_read(self, template: Template) -> bool:
        """Whether it is worth trying to read a template, one of a choice."""
        return True

    @abstractmethod
    def call(self, takes: Iterable[tuple[str, str]]) -> Self:
        """The state at the beginning of a rule, which sees the caller's variables (second) by names of its own."""

    @abstractmethod
    def back(self, caller: Self, gives: Iterable[tuple[str, str]]) -> Self:
        """This state of a called rule's end, seen from its caller."""


S = TypeVar("S", bound=State)


def read(grammar: Grammar, items: Template, start: S) -> list[S]:
    """Every way to read the items from a state on."""
    states, done = [start], []
    for item in items:
        if not states:
            break
        after = [state for before in states for state in _read_item(grammar, item, before)]
        states = [state for state in after if not state.done]
        done += [state for state in after if state.done]
    return done + states


def _read_item(grammar: Grammar, item: Item, state: S) -> Iterable[S]:
    match item:
        case FixedText(fixed):
            after = state.write(fixed)
            return [] if after is None else [after]
        case Mention(variable, strings):
            return state.mention(variable, strings)
        case Draw(variable, strings, law):
            return state.draw(variable, strings, law)
        case Alternatives(law, options):
            worth = [state.may_read(option) for option in options]
            chosen = [(options[outcome], after) for outcome, after in state.choose(law) if worth[outcome]]
            return [after for option, begun in chosen for after in read(grammar, option, begun)]
        case RuleCall(rule, names):
            called = grammar.rules[rule]
            inner = state.call([(own, callers) for own, callers in names if own in called.takes])
            gives = [(own, callers) for own, callers in names if own in called.gives]
            return [end if end.done else end.back(state, gives) for end in read(grammar, (called.body,), inner)]


@dataclass(frozen=True, slots=True)
class _Derivation(State):
    """A derivation so far: what each variable is bound to, and its log-probability."""

    text: str
    position: int = 0
    values: Values | None = None
    log_probability: float = 0.0

    def write(self, string: str) -> "_Derivation | None":
        if not self.text.startswith(string, self.position):
            return None
        return _Derivation(self.text, self.position + len(string), self.values, self.log_probability)

    def mention(self, variable: str, strings: tuple[str, ...]) -> Iterator["_Derivation"]:
        if after := self.write(strings[self._values[variable]]):
            yield after

    def draw(self, variable: str | None, strings: tuple[str, ...], law: Law) -> Iterator["_Derivation"]:
        for outcome, log_probability in law.given(self._values).log_probabilities.items():
            if self.text.startswith(strings[outcome], self.position):
                values = self._values if variable is None else {**self._values, variable: outcome}
                position = self.position + len(strings[outcome])
                yield _Derivation(self.text, position, values, self.log_probability + log_probability)

    def choose(self, law: Law) -> Iterator[tuple[int, "_Derivation"]]:
        for outcome, log_probability in law.given(self._values).log_probabilities.items():
            yield outcome, _Derivation(self.text, self.position, self._values, self.log_probability + log_probability)

    def call(self, takes: Iterable[tuple[str, str]]) -> "_Derivation":
        values = {own: self._values[callers] for own, callers in takes}
        return _Derivation(self.text, self.position, values, self.log_probability)

    def back(self, caller: "_Derivation", gives: Iterable[tuple[str, str]]) -> "_Derivation":
        values = {**caller._values, **{callers: self._values[own] for own, callers in gives}}
        return _Derivation(self.text, self.position, values, self.log_probability)

    @property
    def _values(self) -> Values:
        return self.values or {}


def derivations(grammar: Grammar, text: str) -> list[float]:
    """The log-probability, in nats, of every derivation of exactly this text; empty if the grammar cannot make it."""
    ends = read(grammar, (RuleCall(grammar.start, ()),), _Derivation(text))
    return [end.log_probability for end in ends if end.position == len(text)]


def log_probability(grammar: Grammar, text: str) -> float:
    """ln P(text), summed over all derivations; -inf if there is none."""
    logs = derivations(grammar, text)
    if not logs:
        return -math.inf
    largest = max(logs)
    return largest + math.log(math.fsum(math.exp(log - largest) for log in logs))
