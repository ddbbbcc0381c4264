"""From the written grammar (`plots.txt`) to a `Grammar`, with every reference checked.

    let hero friend: person                variables and the category that each is bound in
    meeting(hero) -> friend                a rule: the variables it takes, and those that it binds for its caller
      3: {hero} met {new friend}.          a weight and a template; further lines of a template are indented deeper
      1 [hero.sex=f, hero.sex!=...]: ...   a guard: a template that can be chosen only if the features say so

In a template, ` / ` is a new line, and

    {hero} {hero.his} {hero.He}            a variable's word, or a form of it
    {new friend} {new thing.a}             draws a word, binds the variable, writes the word (or that form of it)
    {new look ~ thing}                     the same, among the words that share a `kind` with the thing
    {any weather}  {any look.a ~ thing}    draws a word of a category and writes it, binding nothing
    (cold*3|very wet|)                     a choice of the moment, each option with its weight, 1 if none is written
    <meeting>  <meeting hero=friend>       a rule; its variables are the caller's of the same names unless renamed

**Variables of one category that are seen together are always bound to different words**: a draw leaves out the words
of the variables seen where it stands, those are the rule's own `takes` and what its template bound before. A variable
bound in an inline choice is not seen outside. Words must not be glued to letters: "{thing}s" is refused.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from clearhead.data.stories.grammar import (
    Alternatives,
    Draw,
    DrawMask,
    FixedText,
    Grammar,
    GrammarError,
    Item,
    Law,
    Mention,
    Rule,
    RuleCall,
)
from clearhead.data.stories.lexicon import Category

HEADER = re.compile(r"(\w+)(?:\(([\w ]*)\))?(?: -> ([\w ]+))?")
OPTION = re.compile(r"  (\d+)(?: \[(.*?)\])?: (.*)")
TOKEN = re.compile(r"\{[^{}]*\}|<[^<>]*>|[()|]|[^{}<>()|]+")


@dataclass
class _Source:
    """A rule as written."""

    takes: tuple[str, ...]
    gives: tuple[str, ...]
    options: list[tuple[int, str, str]] = field(default_factory=list)  # weight, guard, template


def read_grammar(text: str, categories: Mapping[str, Category]) -> Grammar:
    """The grammar written in the notation above; its first rule is where texts start.

    Raises:
        GrammarError: what is wrong, and in which rule.
    """
    variables: dict[str, Category] = {}
    sources: dict[str, _Source] = {}
    source = _Source((), ())
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if declaration := re.fullmatch(r"let ([\w ]+): (\w+)", line):
            variables |= dict.fromkeys(declaration[1].split(), categories[declaration[2]])
        elif sources and (option := OPTION.fullmatch(line)):
            source.options.append((int(option[1]), option[2] or "", option[3].strip()))
        elif line.startswith("    ") and source.options:
            weight, guard, template = source.options.pop()
            source.options.append((weight, guard, f"{template} {line.strip()}"))
        elif (header := HEADER.fullmatch(line)) and header[1] not in sources:
            source = sources[header[1]] = _Source(tuple((header[2] or "").split()), tuple((header[3] or "").split()))
        else:
            raise GrammarError(f"cannot read the line '{line}'")
    rules = {name: _Reader(categories, variables, sources, name).rule() for name in sources}
    grammar = Grammar(rules, next(iter(rules)))
    _check_whole(grammar)
    return grammar


class _Reader:
    """Reads the templates of one rule, knowing which variables are seen where."""

    def __init__(
        self,
        categories: Mapping[str, Category],
        variables: Mapping[str, Category],
        sources: Mapping[str, _Source],
        name: str,
    ) -> None:
        self.categories, self.variables, self.sources, self.name = categories, variables, sources, name
        self.tokens: list[str] = []

    def rule(self) -> Rule:
        source = self.sources[self.name]
        masks = self._guards([guard for _, guard, _ in source.options], source.takes)
        law = Law(tuple(weight for weight, _, _ in source.options), masks)
        return Rule(
            self.name,
            source.takes,
            source.gives,
            Alternatives(law, tuple(self._template(o[2]) for o in source.options)),
        )

    def _template(self, template: str) -> tuple[Item, ...]:
        template = re.sub(r"\s*/\s*", "\n", template)
        self.tokens = TOKEN.findall(template)
        if "".join(self.tokens) != template:
            raise self._error(f"unbalanced brackets in '{template}'")
        self.tokens.reverse()  # read from the end of the list
        items = self._items([*self.sources[self.name].takes])
        if self.tokens:
            raise self._error(f"'{self.tokens[-1]}' outside brackets in '{template}'")
        return items

    def _items(self, bound: list[str]) -> tuple[Item, ...]:
        """Items up to a bar, a closing bracket or the end; `seen` grows by the variables that they bind."""
        items: list[Item] = []
        while self.tokens and self.tokens[-1] not in "|)":
            token = self.tokens.pop()
            if token == "(":
                items.append(self._inline_choice(bound))
            elif token[0] == "{":
                items.append(self._word(token[1:-1], bound))
            elif token[0] == "<":
                items.append(self._call(token[1:-1].split(), bound))
            else:
                items.append(FixedText(token))
        return tuple(items)

    def _inline_choice(self, bound: list[str]) -> Alternatives:
        options, weights = [], []
        closed = False
        while not closed:
            items = self._items([*bound])
            weight = 1
            if items and isinstance(last := items[-1], FixedText) and (written := re.search(r"\*(\d+)$", last.text)):
                weight, rest = int(written[1]), last.text[: written.start()]
                items = (*items[:-1], *([FixedText(rest)] if rest else []))
            options.append(items)
            weights.append(weight)
            if not self.tokens:
                raise self._error("a bracket is never closed")
            closed = self.tokens.pop() == ")"
        return Alternatives(Law(tuple(weights)), tuple(options))

    def _word(self, written: str, bound: list[str]) -> Item:
        parts = re.fullmatch(r"(?:(new|any) )?(\w+)(?:\.(\w+))?(?: ~ (\w+))?", written)
        if parts is None:
            raise self._error(f"cannot read '{{{written}}}'")
        how, name, form, like = parts[1], parts[2], parts[3] or "name", parts[4]
        category = (self.categories if how == "any" else self.variables).get(name)
        if category is None or (how is None and name not in bound) or (how == "new" and name in bound):
            raise self._error(f"'{{{written}}}' names something unknown, not yet bound, or bound already")
        strings = category.strings(form)
        if how is None:
            return Mention(name, strings)
        if len({*strings}) < len(strings):
            raise self._error(f"'{{{written}}}' does not tell all words of '{category.name}' apart")
        masks = [self._shares_kind(like, category, bound)] if like else []
        if how == "new":
            different = ~np.eye(len(strings), dtype=bool)
            masks += [DrawMask((other,), different) for other in bound if self.variables[other] is category]
            bound.append(name)
        return Draw(name if how == "new" else None, strings, Law(tuple(category.weights), tuple(masks)))

    def _shares_kind(self, like: str, category: Category, bound: list[str]) -> DrawMask:
        if like not in bound:
            raise self._error(f"'{like}' is not bound yet")
        required = [{*kind.split("+")} for kind in self.variables[like].strings("kind")]
        offered = [{*kind.split("+")} for kind in category.strings("kind")]
        return DrawMask((like,), np.array([[bool(kinds & others) for others in offered] for kinds in required]))

    def _call(self, written: list[str], bound: list[str]) -> RuleCall:
        rule, renames = written[0], dict(part.split("=") for part in written[1:])
        if rule not in self.sources:
            raise self._error(f"there is no rule '{rule}'")
        source = self.sources[rule]
        names = {own: renames.pop(own, own) for own in (*source.takes, *source.gives)}
        taken, yielded = [names[own] for own in source.takes], [names[own] for own in source.gives]
        wrong = [v for v in taken if v not in bound] + [v for v in yielded if v in bound] + [*renames]
        wrong += [v for own, v in names.items() if self.variables.get(own) is not self.variables.get(v)]
        # The callee draws a word different from those it sees, so it must see all that it could repeat.
        new = [self.variables[v] for v in yielded]
        wrong += [v for v in bound if v not in taken and any(self.variables[v] is category for category in new)]
        if wrong or len({*names.values()}) < len(names):
            raise self._error(f"the call of '{rule}' is wrong about {', '.join(wrong) or 'a variable used twice'}")
        bound += yielded
        return RuleCall(rule, tuple(names.items()))

    def _guards(self, guards: Iterable[str], takes: tuple[str, ...]) -> tuple[DrawMask, ...]:
        masks = []
        for option, guard in enumerate(guards):
            for condition in filter(None, guard.split(", ")):
                parts = re.fullmatch(r"(\w+)\.(\w+)(!?=)(\w+)(?:\.(\w+))?", condition)
                used = [parts[1], *([parts[4]] if parts[5] else [])] if parts else []
                if parts is None or not {*used} <= {*takes}:
                    raise self._error(f"cannot use the guard '{condition}'")
                left = np.array(self.variables[parts[1]].strings(parts[2]))
                right = np.array(self.variables[parts[4]].strings(parts[5])) if parts[5] else np.array(parts[4])
                holds = (left[:, None] == right if parts[5] else left == right) ^ (parts[3] == "!=")
                allowed = np.ones((*holds.shape, len([*guards])), dtype=bool)
                allowed[..., option] = holds
                masks.append(DrawMask(tuple(used), allowed))
        return tuple(masks)

    def _error(self, what: str) -> GrammarError:
        return GrammarError(f"in rule '{self.name}': {what}")


def _check_whole(grammar: Grammar) -> None:
    """Refuse recursion, rules that bind what they give in two ways, and words glued to letters."""
    start = grammar.rules[grammar.start]
    if start.takes or start.gives:
        raise GrammarError(f"the first rule, '{start.name}', cannot take or give variables")
    for rule in grammar.rules.values():
        for variable in rule.gives:
            grammar.binding(rule.name, variable)
    _Glue(grammar).after((RuleCall(grammar.start, ()),), False)


class _Glue:
    """Finds a letter written right after another piece's letter, which would blur where a word ends."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.known: dict[tuple[str, bool], bool] = {}
        self.open: list[str] = []

    def after(self, items: Iterable[Item], letter: bool) -> bool:
        """Whether a letter may come last after the items, when one may (`letter`) have come last before them."""
        for item in items:
            match item:
                case FixedText(text):
                    self._check(letter, [text])
                    letter = text[-1].isalpha()
                case Mention(_, strings) | Draw(_, strings, _):
                    self._check(letter, strings)
                    letter = any(string[-1].isalpha() for string in strings)
                case Alternatives(_, options):
                    letter = max([self.after(option, letter) for option in options])
                case RuleCall(rule, _):
                    letter = self._after_rule(rule, letter)
        return letter

    def _after_rule(self, rule: str, letter: bool) -> bool:
        if rule in self.open:
            raise GrammarError(f"rule '{rule}' reaches itself")
        if (rule, letter) not in self.known:
            self.open.append(rule)
            self.known[rule, letter] = self.after((self.grammar.rules[rule].body,), letter)
            self.open.pop()
        return self.known[rule, letter]

    def _check(self, letter: bool, strings: Iterable[str]) -> None:
        for string in strings:
            if letter and string[0].isalpha():
                raise GrammarError(f"'{string}' is glued to the letters before it, in rule '{self.open[-1]}'")
