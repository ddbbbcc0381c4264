"""The exact entropy and expected length of a grammar's texts, by recursion over its rules.

Both are expectations of sums: a derivation's surprise is the sum of its choices' surprises, its length that of its
pieces. So each item of a template contributes its own expectation, which depends on few variables. The expectation of
what follows is kept as a sum of tables, one for each set of variables that something depends on; walking a template
backwards, a draw turns every table over its variable into one over the draw's parents (variable elimination). Nothing
is sampled or rounded, and no table is larger than the variables that really meet in it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clearhead.data.stories.grammar import Alternatives, Draw, FixedText, Grammar, Law, Mention, RuleCall, Template

Floats = NDArray[np.float64]
Sum = dict[tuple[str, ...], Floats]  # sorted variables -> table (size of each variable..., 2): entropy, characters


@dataclass(frozen=True)
class Measure:
    """What a text of the grammar holds on average: `entropy` in nats, `characters` in characters."""

    entropy: float
    characters: float


def measure(grammar: Grammar) -> Measure:
    """The entropy of the derivation (of the text itself, if no text has two) and the expected length, both exact."""
    total = _Expectations(grammar).of_rule(grammar.start)
    assert set(total) <= {()}, "the start rule depends on a variable"
    entropy, characters = total[()]
    return Measure(float(entropy), float(characters))


def probabilities(law: Law) -> Floats:
    """P(outcome | parents) for every value of the parents: (size of each parent..., outcomes)."""
    axes = {variable: axis for axis, variable in enumerate(law.parents)}
    weights = np.array(law.weights, dtype=np.float64)
    for mask in law.masks:
        order = np.argsort([axes[variable] for variable in mask.variables])
        shape = [1] * len(axes) + [len(law.weights)]
        for variable, size in zip(mask.variables, mask.allowed.shape, strict=False):
            shape[axes[variable]] = size
        weights = weights * mask.allowed.transpose(*order, len(order)).reshape(shape)  # (parents..., outcomes)
    totals = weights.sum(-1, keepdims=True)
    # A combination that cannot occur (two names that are never the same) leaves nothing: it gets no probability.
    chances: Floats = np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)
    return chances


class _Expectations:
    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.rules: dict[str, Sum] = {}
        self.bindings: dict[tuple[str, str], Law] = {}

    def of_rule(self, name: str) -> Sum:
        if name not in self.rules:
            self.rules[name] = self.of_template((self.grammar.rules[name].body,))
        return self.rules[name]

    def of_template(self, items: Template) -> Sum:
        total: Sum = {(): np.zeros(2)}
        for item in reversed(items):
            match item:
                case FixedText(text):
                    total[()] = total[()] + (0, len(text))
                case Mention(variable, strings):
                    _add(total, (variable,), np.stack([np.zeros(len(strings)), _lengths(strings)], -1))
                case Draw(variable, strings, law):
                    if variable is not None:
                        total = _eliminate(total, variable, law)
                    chances = probabilities(law)
                    _add(total, law.parents, np.stack([_entropy(chances), chances @ _lengths(strings)], -1))
                case Alternatives(law, options):
                    self._add_choice(total, law, options)
                case RuleCall(rule, names):
                    for own, callers in reversed(names):
                        if own in self.grammar.rules[rule].gives:
                            total = _eliminate(total, callers, self._binding(rule, own).renamed(dict(names)))
                    for variables, table in self.of_rule(rule).items():
                        _add(total, tuple(dict(names)[variable] for variable in variables), table)
        return total

    def _binding(self, rule: str, variable: str) -> Law:
        if (rule, variable) not in self.bindings:
            self.bindings[rule, variable] = self.grammar.binding(rule, variable)
        return self.bindings[rule, variable]

    def _add_choice(self, total: Sum, law: Law, options: tuple[Template, ...]) -> None:
        chances = probabilities(law)
        entropy = _entropy(chances)
        _add(total, law.parents, np.stack([entropy, np.zeros_like(entropy)], -1))
        for outcome, option in enumerate(options):
            for variables, table in self.of_template(option).items():
                axes = tuple(dict.fromkeys(law.parents + variables))
                product = _einsum(law.parents, chances[..., outcome], variables, table, axes)
                _add(total, axes, product)


def _lengths(strings: tuple[str, ...]) -> Floats:
    return np.array([len(string) for string in strings], dtype=np.float64)


def _entropy(chances: Floats) -> Floats:
    """Entropy of the last axis, in nats."""
    surprise: Floats = chances * -np.log(chances, out=np.zeros_like(chances), where=chances > 0)
    return np.asarray(surprise.sum(-1))


def _add(total: Sum, variables: tuple[str, ...], table: Floats) -> None:
    """Add a table to the sum, with its variables brought into sorted order."""
    order = sorted(range(len(variables)), key=lambda axis: variables[axis])
    key = tuple(variables[axis] for axis in order)
    table = table.transpose(*order, len(order))
    total[key] = total[key] + table if key in total else table


def _eliminate(total: Sum, variable: str, law: Law) -> Sum:
    """The expectation of the sum over a variable drawn by the law: no table of the result mentions the variable."""
    kept: Sum = {variables: table for variables, table in total.items() if variable not in variables}
    chances = probabilities(law)
    for variables, table in total.items():
        if variable in variables:
            axes = tuple(dict.fromkeys(v for v in law.parents + variables if v != variable))
            _add(kept, axes, _einsum((*law.parents, variable), chances, variables, table, axes))
    return kept


def _einsum(
    chance_axes: tuple[str, ...], chances: Floats, table_axes: tuple[str, ...], table: Floats, axes: tuple[str, ...]
) -> Floats:
    """The product of chances (variables...) and a table (variables..., 2), summed over the variables not in `axes`."""
    letters = {v: chr(ord("a") + i) for i, v in enumerate(dict.fromkeys(chance_axes + table_axes))}
    first, second, result_axes = ("".join(letters[v] for v in names) for names in (chance_axes, table_axes, axes))
    result: Floats = np.einsum(f"{first},{second}Z->{result_axes}Z", chances, table)
    return result
