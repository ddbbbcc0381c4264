"""A proof that no text has two derivations, so that the derivation's entropy is the text's.

Read texts as tokens: runs of letters, and single other characters (no piece of a template is glued to a letter, which
the notation refuses). If in every rule no text of one derivation begins with the text of another, then a rule's text
says where it ends and how it was made, hence, by induction over calls, so does the whole. Two derivations of a rule
part at some choice, either of its template or within it. For each choice and each pair of its options the search below
looks for a token sequence that both can write, until one of them has reached the end of the rule.

The search forgets that a variable keeps its word: it lets each mention be any word of its category. That only adds
texts, so finding nothing is a proof; what it finds may be a false alarm, which writing the rule more plainly mends.
It keeps two facts: variables bound before the parting have the same words in both derivations, and different variables
of one category have different words.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from clearhead.data.stories.grammar import (
    Alternatives,
    Draw,
    FixedText,
    Grammar,
    Item,
    Law,
    Mention,
    Rule,
    RuleCall,
    Template,
)

Names = (
    tuple[tuple[str, str], ...] | None
)  # a called rule's variables and their names in the rule proved; None: that rule


@dataclass(frozen=True)
class _Pending:
    """An item still to be written, and what its variables are called where the search started."""

    item: Item
    names: Names = None

    def name(self, variable: str) -> str:
        """The variable's name in the rule being proved; one that only a called rule sees is marked as unknown."""
        return variable if self.names is None else dict(self.names).get(variable, f"?{variable}")


Rest = tuple[str | _Pending, ...]  # what is still to be written: tokens and items


def ambiguities(grammar: Grammar) -> Iterator[str]:
    """What keeps the grammar from being proved unambiguous, one sentence each; none: no text has two derivations."""
    for rule in grammar.rules.values():
        yield from _within(grammar, rule, (rule.body,), {*rule.takes}, ())


def tokens(text: str) -> tuple[str, ...]:
    """Runs of letters, and single other characters."""
    return tuple(re.findall(r"[^\W\d_]+|.", text, re.DOTALL))


def _within(grammar: Grammar, rule: Rule, items: Template, bound: set[str], after: Rest) -> Iterator[str]:
    """Ambiguities that start at the items of a template, which are followed by `after` until the rule's end."""
    for position, item in enumerate(items):
        rest = (*(_Pending(later) for later in items[position + 1 :]), *after)
        match item:
            case Alternatives(law, options):
                for left, right in itertools.combinations(range(len(options)), 2):
                    if _together(law, left, right):
                        starts = [(*(_Pending(i) for i in options[k]), *rest) for k in (left, right)]
                        if (witness := _clash(grammar, starts[0], starts[1], bound)) is not None:
                            yield f"rule '{rule.name}': two templates can both begin '{witness}'"
                for option in options:
                    yield from _within(grammar, rule, option, {*bound}, rest)
            case Draw(name, strings, _) | Mention(name, strings):
                if (pair := _prefixed(strings)) is not None:
                    yield f"rule '{rule.name}': the word '{pair[0]}' is the beginning of '{pair[1]}'"
                bound = bound | {name} if name is not None else bound
            case RuleCall(_, calls):
                bound = bound | {callers for _, callers in calls}
            case FixedText():
                pass


def _together(law: Law, left: int, right: int) -> bool:
    """Whether some values of the parents leave both outcomes possible."""
    axes = {variable: axis for axis, variable in enumerate(law.parents)}
    both = np.ones([1] * len(axes), dtype=bool)
    for mask in law.masks:
        order = sorted(range(len(mask.variables)), key=lambda axis: axes[mask.variables[axis]])
        shape = [1] * len(axes)
        for variable, size in zip(mask.variables, mask.allowed.shape, strict=False):
            shape[axes[variable]] = size
        both = both & (mask.allowed[..., left] & mask.allowed[..., right]).transpose(order).reshape(shape)
    return bool(both.any())


def _prefixed(strings: tuple[str, ...]) -> tuple[str, str] | None:
    """Two different words of which one begins with the other's tokens."""
    ordered = sorted({tokens(string) for string in strings})
    for shorter, longer in itertools.pairwise(ordered):  # sorted: a beginning stands right before some continuation
        if longer[: len(shorter)] == shorter:
            return "".join(shorter), "".join(longer)
    return None


def _clash(grammar: Grammar, start: Rest, other_start: Rest, bound: set[str]) -> str | None:
    """Tokens with which a text of one begins and a text of the other ends, or the reverse; None without any."""
    pairs = [(start, other_start, "")]
    tried = set()
    while pairs:
        left, right, written = pairs.pop()
        if (left, right) in tried:
            continue
        tried.add((left, right))
        if not left or not right:
            return written
        if _write_the_same(grammar, left[0], right[0], bound):
            shown = left[0] if isinstance(left[0], str) else "..."
            pairs.append((left[1:], right[1:], written + shown))
        elif (_structure(right[0]) and not _structure(left[0])) or isinstance(left[0], str):
            if not isinstance(right[0], str):
                pairs += [(left, first + right[1:], written) for first in _expand(grammar, right[0], left[0])]
        elif not _must_differ(left[0], right[0], bound):
            pairs += [(first + left[1:], right, written) for first in _expand(grammar, left[0], right[0])]
    return None


def _structure(head: str | _Pending) -> bool:
    """Whether a head is best taken apart before words are spelled out, of which there may be hundreds."""
    return isinstance(head, _Pending) and isinstance(head.item, FixedText | Alternatives | RuleCall)


def _write_the_same(grammar: Grammar, left: str | _Pending, right: str | _Pending, bound: set[str]) -> bool:
    """Whether both heads must write the same tokens if neither's text is to part from the other's."""
    if isinstance(left, str) or isinstance(right, str):
        return left == right
    match left.item, right.item:
        case ((Mention(_, strings) | Draw(_, strings, _)), (Mention(_, others) | Draw(_, others, _))):
            return strings == others and not _must_differ(left, right, bound)
        case RuleCall(rule, names), RuleCall(other, others):
            takes = grammar.rules[rule].takes
            own_names = [left.name(callers) for own, callers in names if own in takes]
            other_names = [right.name(callers) for own, callers in others if own in takes]
            return rule == other and own_names == other_names and {*own_names} <= bound
        case _:
            return False


def _must_differ(left: str | _Pending, right: str | _Pending, bound: set[str]) -> bool:
    """Whether both heads mention words of one category that are known to differ."""
    if isinstance(left, str) or isinstance(right, str):
        return False
    match left.item, right.item:
        case Mention(variable, strings), Mention(other, others):
            named = {left.name(variable), right.name(other)}
            return strings == others and len(named) == 2 and named <= bound and len({*strings}) == len(strings)
        case _:
            return False


def _expand(grammar: Grammar, pending: _Pending, other: str | _Pending) -> list[Rest]:
    """The beginnings that an item may write, as tokens and further items; of words, those that `other` may write."""
    match pending.item:
        case FixedText(text):
            return [tokens(text)]
        case Mention(_, strings) | Draw(_, strings, _):
            words = _by_first_token(strings)
            return [word for first in _first_tokens(other, words) for word in words.get(first, [])]
        case Alternatives(_, options):
            return [tuple(_Pending(item, pending.names) for item in option) for option in options]
        case RuleCall(rule, calls):
            names = tuple((own, pending.name(callers)) for own, callers in calls)
            return [(_Pending(grammar.rules[rule].body, names),)]


def _first_tokens(head: str | _Pending, otherwise: Iterable[str]) -> Iterable[str]:
    if isinstance(head, str):
        return [head]
    match head.item:
        case Mention(_, strings) | Draw(_, strings, _):
            return _by_first_token(strings)
        case _:
            return otherwise


@functools.lru_cache(maxsize=1000)
def _by_first_token(strings: tuple[str, ...]) -> dict[str, list[Rest]]:
    words: dict[str, list[Rest]] = {}
    for word in dict.fromkeys(tokens(string) for string in strings):
        words.setdefault(word[0], []).append(word)
    return words
