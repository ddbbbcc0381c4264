"""Whether a regular expression of somebody else's tokenizer can take forever, judged by its structure alone.

A search that fails goes through every way in which the pattern matches the same characters. That number is bounded
from above here: a part counts once where the next character decides how to go on, and a repetition that may end at
several characters counts as `MANY`. Nested, it is a power: `(a|aa)+$` has 2**MANY ways.

The syntax is Oniguruma's, which the `tokenizers` library uses. What no published tokenizer needs is refused unread.
"""

import re
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

MANY = 64  # what a repetition without a limit counts as
MAX_WAYS = MANY**4  # published patterns have fewer than MANY**3
MAX_CHARACTERS = 20_000  # characters; the longest published ones have 3,000
DEEPEST = 40  # groups within groups

Characters: TypeAlias = frozenset[str] | None  # case-folded; None for any
NOTHING: frozenset[str] = frozenset()

_ESCAPE = re.compile(
    r"\\(?:[pP]\{[^}]*\}|x\{[0-9a-fA-F ]+\}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|[0-9]{1,3}|k<[^>]*>|[^0-9pPuxkgcCMQEo])",
    re.DOTALL,
)
_COUNT = re.compile(r"\{(?:(?P<exactly>[0-9]{1,6})|(?P<least>[0-9]{0,6}),(?P<most>[0-9]{0,6}))\}")
_OPEN = re.compile(
    r"\((?:\?(?:(?P<comment>#[^)]*\))|(?P<assertion><?[=!])|(?P<atomic>>)|<\w+>|'\w+'|[im-]*(?P<flags>[:)])))?(?!\?)"
)
_OPTIONS = re.compile(r"\(\?[im-]*\)")
_ASSERTIONS = frozenset("bBAzZGyYK")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}


class TooAmbiguousError(Exception):
    """The pattern can match one text in too many ways, or cannot be judged; the message is the end of a sentence."""


@dataclass(frozen=True)
class Character:
    """One character of these."""

    first: Characters


@dataclass(frozen=True)
class Sequence:
    """One part after the other."""

    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Alternation:
    """One of the parts."""

    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Repeat:
    """The body, several times."""

    body: "Node"
    least: int
    most: int


@dataclass(frozen=True)
class Closed:
    """A body that nothing after it goes back into: an atomic group, or an assertion, which takes no characters."""

    body: "Node"
    is_assertion: bool


Node: TypeAlias = Character | Sequence | Alternation | Repeat | Closed


def refuse_ambiguous(pattern: str) -> None:
    """Raise a TooAmbiguousError unless the pattern takes a bounded number of ways through any text."""
    if len(pattern) > MAX_CHARACTERS:
        raise TooAmbiguousError(f"has more than {MAX_CHARACTERS:,} characters")
    _bounded(ways(_Parser(pattern).parse(), NOTHING))


def ways(node: Node, after: Characters) -> int:
    """In how many ways the node can match the same characters, at most.

    Args:
        node: a part of a pattern.
        after: the characters that may come next; empty where nothing comes that could fail.
    """
    match node:
        case Character():
            return 1
        case Closed():
            _bounded(ways(node.body, NOTHING))
            return 1
        case Sequence():
            total = 1
            for part in reversed(node.parts):
                total = _capped(total * ways(part, after))
                after = _then(part, after)
            return total
        case Alternation():
            counts = [ways(part, after) for part in node.parts]
            return max(counts) if _are_apart([_then(part, after) for part in node.parts]) else _capped(sum(counts))
        case Repeat():
            again = node.most > 1
            if after == NOTHING:  # whatever was matched stays so
                times, ends = max(1, node.least), 1
                inner = first(node.body) if node.least > 1 else NOTHING
            else:
                times = min(node.most, MANY)
                ends = 1 if _are_apart([first(node.body), after]) else max(1, times - node.least + 1)
                inner = _either(first(node.body), after) if again else after
            return _capped(ends * _capped(ways(node.body, inner)) ** min(times, MANY))


def first(node: Node) -> Characters:
    """The characters that it can begin with."""
    match node:
        case Character():
            return node.first
        case Closed():
            return None if node.is_assertion else first(node.body)
        case Repeat():
            return first(node.body)
        case Alternation():
            return _either(*map(first, node.parts))
        case Sequence():
            begin: Characters = NOTHING
            for part in node.parts:
                begin = _either(begin, first(part))
                if not can_be_empty(part):
                    break
            return begin


def can_be_empty(node: Node) -> bool:
    """Whether it matches without a character and without a condition."""
    match node:
        case Character():
            return False
        case Closed():
            return not node.is_assertion and can_be_empty(node.body)
        case Repeat():
            return node.least == 0 or can_be_empty(node.body)
        case Alternation():
            return any(map(can_be_empty, node.parts))
        case Sequence():
            return all(map(can_be_empty, node.parts))


def _then(part: Node, after: Characters) -> Characters:
    """What may come where `part` comes, and `after` behind it."""
    if not can_be_empty(part):
        return first(part)
    return NOTHING if after == NOTHING else _either(first(part), after)


def _either(*sets: Characters) -> Characters:
    return None if any(characters is None for characters in sets) else NOTHING.union(*filter(None, sets))


def _are_apart(sets: list[Characters]) -> bool:
    """Whether the next character decides between them."""
    known = [characters for characters in sets if characters]
    return len(known) == len(sets) and len(NOTHING.union(*known)) == sum(map(len, known))


def _capped(count: int) -> int:
    return min(count, MAX_WAYS + 1)


def _bounded(count: int) -> None:
    if count > MAX_WAYS:
        raise TooAmbiguousError("can match the same characters in too many ways, so some texts would take forever")


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern, self.at, self.depth = pattern, 0, 0

    def parse(self) -> Node:
        """The whole pattern."""
        node = self._choice()
        if self.at < len(self.pattern):
            self._refuse()
        return node

    def _refuse(self) -> NoReturn:
        raise TooAmbiguousError(f"cannot be judged from {self.pattern[self.at : self.at + 20]!r} on")

    def _match(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        match = expression.match(self.pattern, self.at)
        self.at = match.end() if match else self.at
        return match

    def _next(self, text: str) -> bool:
        is_next = self.pattern.startswith(text, self.at)
        self.at += len(text) * is_next
        return is_next

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            self._refuse()

    def _choice(self) -> Node:
        """Up to the end of the group."""
        self._deeper()
        parts = [self._sequence()]
        while self._next("|"):
            parts.append(self._sequence())
        self.depth -= 1
        return parts[0] if len(parts) == 1 else Alternation(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            if parts and _OPTIONS.match(self.pattern, self.at):  # there, its dialects differ in what they hold for
                self._refuse()
            parts.append(self._repeated(self._atom()))
        return Sequence(tuple(parts))

    def _repeated(self, node: Node) -> Node:
        while self.at < len(self.pattern):
            if count := self._match(_COUNT):
                least = int(count["exactly"] or count["least"] or 0)
                most = int(count["exactly"] or count["most"] or MANY)
                node = Repeat(node, min(least, most), max(least, most))
                self._next("?")  # in either reading, the bound holds: as few as possible, or all of it optional
                node = Repeat(node, 0, 1) if self.pattern[self.at - 1] == "?" and count["exactly"] else node
            elif (sign := self.pattern[self.at]) in "*+?":
                self.at += 1
                node = Repeat(node, int(sign == "+"), 1 if sign == "?" else MANY)
                if self._next("+"):
                    node = Closed(node, is_assertion=False)
                else:
                    self._next("?")
            else:
                break
        return node

    def _atom(self) -> Node:
        match self.pattern[self.at]:
            case "(":
                return self._group()
            case "[":
                return Character(self._class())
            case "\\":
                return self._escape()
            case "^" | "$":
                self.at += 1
                return Closed(Sequence(()), is_assertion=True)
            case ".":
                self.at += 1
                return Character(None)
            case sign:
                self.at += 1
                return Character(_folded(sign))

    def _group(self) -> Node:
        opened = self._match(_OPEN)
        if opened is None:
            self._refuse()
        if opened["comment"]:
            return Sequence(())
        node = self._choice()
        if opened["flags"] == ")":  # the options hold to the end of the group around, alternatives included
            return node
        if not self._next(")"):
            self._refuse()
        if opened["assertion"] or opened["atomic"]:
            return Closed(node, is_assertion=bool(opened["assertion"]))
        return node

    def _escape(self) -> Node:
        escape = self._match(_ESCAPE)
        if escape is None:
            self._refuse()
        sign = escape[0][1:]
        if sign in _ASSERTIONS:
            return Closed(Sequence(()), is_assertion=True)
        return Character(_literal(sign))

    def _class(self) -> Characters:
        """The characters of a bracket; None unless they are written one by one."""
        self.at += 1
        characters: Characters = None if self._next("^") else NOTHING
        begin = self.at
        while self.at < len(self.pattern) and (self.pattern[self.at] != "]" or self.at == begin):
            if self.pattern[self.at] == "[":
                self._deeper()
                self._class()
                self.depth -= 1
                characters = None
            elif self.pattern[self.at] == "\\":
                characters = _either(characters, first(self._escape()))
            else:
                ranges = self.pattern[self.at] in "-&"
                characters = None if ranges else _either(characters, _folded(self.pattern[self.at]))
                self.at += 1
        if not self._next("]"):
            self._refuse()
        return characters


def _folded(sign: str) -> Characters:
    return frozenset(sign.casefold())


def _literal(sign: str) -> Characters:
    """What an escape stands for, where it is one character."""
    if sign in _CONTROLS:
        return frozenset(_CONTROLS[sign])
    return _folded(sign) if len(sign) == 1 and not sign.isalnum() else None
