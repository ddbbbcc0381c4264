"""A probabilistic grammar whose variables are bound once and used later, and how to draw a text from it.

A grammar is a set of rules. A rule is a weighted choice among templates; a template is a sequence of items: fixed text,
the mention of a variable, the draw of a word (perhaps binding a variable), an inline choice, or the call of a rule.
Weights are integers, and a choice may depend on variables only through `Law`; so every probability is an exact ratio
of integers, and sampling, parsing and measuring all ask the same object for it.

No rule may reach itself, so every grammar has finitely many texts.
"""

import bisect
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Values = dict[str, int]  # variable -> index of the word it is bound to, in its category


class GrammarError(ValueError):
    """The grammar as written means nothing; the message says which rule and why."""


@dataclass(frozen=True)
class Distribution:
    """The outcomes that are possible, their running sums of weights, and the natural logarithm of each probability."""

    outcomes: tuple[int, ...]
    cumulative: tuple[int, ...]
    log_probabilities: Mapping[int, float]

    def draw(self, uniform: float) -> int:
        """The outcome for a number drawn uniformly from [0, 1)."""
        return self.outcomes[bisect.bisect_right(self.cumulative, uniform * self.cumulative[-1])]


@dataclass(frozen=True)
class DrawMask:
    """Which outcomes the values of some variables leave possible: `allowed` is (size of each variable..., outcomes)."""

    variables: tuple[str, ...]
    allowed: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Law:
    """The probabilities of some outcomes given the variables bound before: the weights that the masks leave."""

    weights: tuple[int, ...]
    masks: tuple[DrawMask, ...] = ()
    _known: dict[tuple[int, ...], Distribution] = field(default_factory=dict, repr=False)

    @property
    def parents(self) -> tuple[str, ...]:
        """The variables that the probabilities depend on, in a fixed order."""
        return tuple(dict.fromkeys(variable for mask in self.masks for variable in mask.variables))

    def given(self, values: Values) -> Distribution:
        """The distribution for these values of the parents."""
        key = tuple([values[variable] for mask in self.masks for variable in mask.variables])
        if key not in self._known:
            self._known[key] = self._distribution(values)
        return self._known[key]

    def _distribution(self, values: Values) -> Distribution:
        weights = np.array(self.weights)
        for mask in self.masks:
            weights = weights * mask.allowed[tuple(values[variable] for variable in mask.variables)]
        outcomes = tuple(int(outcome) for outcome in np.flatnonzero(weights))
        if not outcomes:
            raise GrammarError(f"nothing is left to choose from when {values}")
        left = [int(weights[outcome]) for outcome in outcomes]
        log_total = math.log(sum(left))
        logs = {outcome: math.log(weight) - log_total for outcome, weight in zip(outcomes, left, strict=True)}
        return Distribution(outcomes, tuple(itertools.accumulate(left)), logs)

    def renamed(self, names: Mapping[str, str]) -> "Law":
        """The same law with other names for its parents."""
        masks = [DrawMask(tuple(names.get(v, v) for v in mask.variables), mask.allowed) for mask in self.masks]
        return Law(self.weights, tuple(masks))

    def same_as(self, other: "Law") -> bool:
        """Whether both give every outcome the same probability, by having the same weights and masks."""
        own = {mask.variables: mask.allowed for mask in self.masks}
        others = {mask.variables: mask.allowed for mask in other.masks}
        return (
            self.weights == other.weights
            and own.keys() == others.keys()
            and all(np.array_equal(own[variables], others[variables]) for variables in own)
        )


@dataclass(frozen=True, eq=False)
class FixedText:
    """Fixed text."""

    text: str


@dataclass(frozen=True, eq=False)
class Mention:
    """A form of the word that a variable is bound to; `strings` holds it for every word of the category."""

    variable: str
    strings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Draw:
    """A word drawn from a category and written at once; bound to `variable` unless that is None."""

    variable: str | None
    strings: tuple[str, ...]
    law: Law


@dataclass(frozen=True, eq=False)
class Alternatives:
    """One of several templates. A variable bound in an inline choice is not seen after it."""

    law: Law
    options: tuple[tuple["Item", ...], ...]


@dataclass(frozen=True, eq=False)
class RuleCall:
    """A rule, and which of the caller's variables (second) is which of its own (first), both those given and got."""

    rule: str
    names: tuple[tuple[str, str], ...]


Item = FixedText | Mention | Draw | Alternatives | RuleCall
Template = tuple[Item, ...]


@dataclass(frozen=True)
class Rule:
    """A weighted choice that may mention the variables `takes`, and binds the variables `gives` for its caller."""

    name: str
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    body: Alternatives


@dataclass(frozen=True)
class Grammar:
    """Rules by name; a text is one expansion of the rule `start`, which takes and gives nothing."""

    rules: Mapping[str, Rule]
    start: str

    def sample(self, uniform: Callable[[], float]) -> tuple[str, float]:
        """A text and the log-probability, in nats, of the derivation that made it.

        Args:
            uniform: gives independent numbers from [0, 1); called once per choice or draw, in the order of the text.
        """
        pieces: list[str] = []
        log_probability = self._emit((RuleCall(self.start, ()),), {}, uniform, pieces)
        return "".join(pieces), log_probability

    def _emit(self, items: Template, values: Values, uniform: Callable[[], float], pieces: list[str]) -> float:
        total = 0.0
        for item in items:
            match item:
                case FixedText(text):
                    pieces.append(text)
                case Mention(variable, strings):
                    pieces.append(strings[values[variable]])
                case Draw(name, strings, law):
                    distribution = law.given(values)
                    outcome = distribution.draw(uniform())
                    total += distribution.log_probabilities[outcome]
                    pieces.append(strings[outcome])
                    if name is not None:
                        values[name] = outcome
                case Alternatives(law, options):
                    distribution = law.given(values)
                    outcome = distribution.draw(uniform())
                    total += distribution.log_probabilities[outcome]
                    total += self._emit(options[outcome], values, uniform, pieces)
                case RuleCall(rule, names):
                    inner = {own: values[callers] for own, callers in names if own in self.rules[rule].takes}
                    total += self._emit((self.rules[rule].body,), inner, uniform, pieces)
                    values.update({callers: inner[own] for own, callers in names if own in self.rules[rule].gives})
        return total

    def binding(self, rule: str, variable: str) -> Law:
        """The law by which a rule binds a variable that it gives, in the rule's own names.

        Raises:
            GrammarError: two templates of the rule would bind it by different laws, or one not at all.
        """
        laws = [self._binding_in(option, variable) for option in self.rules[rule].body.options]
        bound = [law for law in laws if law is not None]
        own = {*self.rules[rule].takes, *self.rules[rule].gives}
        if len(bound) < len(laws) or not all(bound[0].same_as(law) and {*law.parents} <= own for law in bound):
            raise GrammarError(
                f"rule '{rule}' must bind '{variable}' by one and the same draw in each of its templates"
            )
        return bound[0]

    def _binding_in(self, items: Template, variable: str) -> Law | None:
        for item in items:
            match item:
                case Draw(name, _, law) if name == variable:
                    return law
                case RuleCall(rule, names):
                    for own, callers in names:
                        if callers == variable and own in self.rules[rule].gives:
                            return self.binding(rule, own).renamed(dict(names))
                case _:
                    pass
        return None


def texts(grammar: Grammar, seed: int) -> Iterator[tuple[str, float]]:
    """Independent texts without end, each with its derivation's log-probability; the same for ever for a given seed."""
    uniform = random.Random(seed).random
    while True:
        yield grammar.sample(uniform)
