"""The probability of a text under a grammar, over all the ways in which the grammar could have made it."""

import math

from clearhead.data.stories.grammar import (
    Alternatives,
    Draw,
    FixedText,
    Grammar,
    Item,
    Mention,
    RuleCall,
    Template,
    Values,
)

State = tuple[int, Values, float]  # characters read, what the variables are bound to, log-probability so far


def derivations(grammar: Grammar, text: str) -> list[float]:
    """The log-probability, in nats, of every derivation of exactly this text; empty if the grammar cannot make it."""
    ends = _read(grammar, (RuleCall(grammar.start, ()),), text, (0, {}, 0.0))
    return [log_probability for position, _, log_probability in ends if position == len(text)]


def log_probability(grammar: Grammar, text: str) -> float:
    """ln P(text), summed over all derivations; -inf if there is none."""
    logs = derivations(grammar, text)
    if not logs:
        return -math.inf
    largest = max(logs)
    return largest + math.log(math.fsum(math.exp(log - largest) for log in logs))


def _read(grammar: Grammar, items: Template, text: str, start: State) -> list[State]:
    """Every way to read the items from the start's position on."""
    states = [start]
    for item in items:
        states = [after for state in states for after in _read_item(grammar, item, text, state)]
    return states


def _read_item(grammar: Grammar, item: Item, text: str, state: State) -> list[State]:
    position, values, so_far = state
    match item:
        case FixedText(fixed):
            return [(position + len(fixed), values, so_far)] if text.startswith(fixed, position) else []
        case Mention(variable, strings):
            word = strings[values[variable]]
            return [(position + len(word), values, so_far)] if text.startswith(word, position) else []
        case Draw(name, strings, law):
            return [
                (
                    position + len(strings[outcome]),
                    values if name is None else {**values, name: outcome},
                    so_far + log_probability,
                )
                for outcome, log_probability in law.given(values).log_probabilities.items()
                if text.startswith(strings[outcome], position)
            ]
        case Alternatives(law, options):
            return [
                after
                for outcome, log_probability in law.given(values).log_probabilities.items()
                for after in _read(grammar, options[outcome], text, (position, values, so_far + log_probability))
            ]
        case RuleCall(rule, names):
            takes, gives = grammar.rules[rule].takes, grammar.rules[rule].gives
            inner = {own: values[callers] for own, callers in names if own in takes}
            return [
                (end, {**values, **{callers: bound[own] for own, callers in names if own in gives}}, log_probability)
                for end, bound, log_probability in _read(
                    grammar, (grammar.rules[rule].body,), text, (position, inner, so_far)
                )
            ]
