"""Where the sentences of a grammar begin, and what is known there of the variables that were bound before."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from clearhead.data.stories.grammar import (
    Alternatives,
    Draw,
    FixedText,
    Grammar,
    Law,
    Mention,
    Rule,
    RuleCall,
    Template,
)
from clearhead.data.stories.knowledge import Knowledge

BEGUN = re.compile(r'[.!?]"? $|\n$')  # before a sentence


@dataclass(frozen=True, slots=True)
class Site:
    """Where reading can begin or go on: the rest of a rule, and what is known there of its variables."""

    rule: str
    rest: Template
    bound: tuple[str, ...]
    knowledge: Knowledge


class SiteFinder:
    """Walks the rules from the start, with all that can be known of the variables on the way, and notes the places.

    A rule is walked once for each way to know its variables and to stand before it: `tails` are the signs that the
    text before may end in, as far as they matter to where a sentence begins.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.starts: dict[object, Site] = {}
        self.after_calls: dict[str, dict[object, tuple[Site, RuleCall]]] = {}
        self.ends: dict[object, frozenset[str]] = {}

    def walk(self, rule: Rule, knowledge: Knowledge, tails: frozenset[str]) -> frozenset[str]:
        """Note the places of a rule and of those that it calls; the tails of its texts."""
        key = rule.name, knowledge.key(), tails
        if key not in self.ends:
            self.ends[key] = self._walk_items((rule.body,), Site(rule.name, (), rule.takes, knowledge), tails)
        return self.ends[key]

    def _walk_items(self, items: Template, after: Site, tails: frozenset[str]) -> frozenset[str]:
        """`after` is the site behind the items, but knows only what is known before them."""
        for index, item in enumerate(items):
            site = replace(after, rest=(*items[index + 1 :], *after.rest))
            match item:
                case FixedText(text):
                    self._note_starts(site, item, tails)
                    tails = _tails(tails, (text,))
                case Mention(_, strings):
                    tails = _tails(tails, strings)
                case Draw(variable, strings, law):
                    tails = _tails(tails, strings)
                    after = after if variable is None else _binding(after, variable, law)
                case Alternatives(law, options):
                    inner = [(option, _choosing(site, law, outcome)) for outcome, option in enumerate(options)]
                    tails = frozenset().union(*(self._walk_items(o, p, tails) for o, p in inner if p is not None))
                case RuleCall(name, names):
                    called = self.grammar.rules[name]
                    taken = {callers: own for own, callers in names if own in called.takes}
                    tails = self.walk(called, after.knowledge.about(taken).renamed(taken), tails)
                    for own, callers in names:
                        if own in called.gives:
                            after = _binding(after, callers, self.grammar.binding(name, own).renamed(dict(names)))
                    site = replace(after, rest=site.rest)
                    self.after_calls.setdefault(name, {})[id(item), after.knowledge.key()] = site, item
        return tails

    def _note_starts(self, site: Site, item: FixedText, tails: frozenset[str]) -> None:
        for offset in range(1, len(item.text) + 1):
            if any(BEGUN.search(tail + item.text[:offset]) for tail in tails):
                rest = (FixedText(item.text[offset:]),) if item.text[offset:] else ()
                start = replace(site, rest=(*rest, *site.rest))
                self.starts[id(item), offset, site.knowledge.key()] = start


def _binding(site: Site, variable: str, law: Law) -> Site:
    """The site, and what is known there, after the law has bound a variable."""
    known: Knowledge | None = site.knowledge
    for mask in law.masks:
        known = known and known.restricted((*mask.variables, variable), mask.allowed)
    assert known is not None, "a table of two variables is never refused"
    return replace(site, bound=(*site.bound, variable), knowledge=known)


def _choosing(site: Site, law: Law, outcome: int) -> Site | None:
    """The site if the law has this outcome; None if it cannot."""
    known: Knowledge | None = site.knowledge
    for mask in law.masks:
        known = known and known.restricted(mask.variables, mask.allowed[..., outcome])
    return None if known is None or not known.possible() else replace(site, knowledge=known)


def _tails(tails: Iterable[str], strings: Iterable[str]) -> frozenset[str]:
    """What the text may end in after one of the strings, as far as it matters to where a sentence begins."""
    ends = (tail + string for tail in tails for string in {string[-2:] for string in strings})
    return frozenset(mark[0] if (mark := re.search(r'[.!?]"?$|\n$', end)) else "" for end in ends)
