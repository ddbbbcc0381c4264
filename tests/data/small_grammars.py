"""Random small grammars, and brute force over every derivation of one, which knows nothing of the library's readers."""

from collections.abc import Iterator
from fractions import Fraction

from hypothesis import strategies as st

from clearhead.data.stories.grammar import Alternatives, Draw, FixedText, Grammar, Law, Mention, RuleCall, Template
from clearhead.data.stories.lexicon import read_categories
from clearhead.data.stories.notation import read_grammar

CATEGORIES = read_categories(
    """
category person: name
  sex=f she=she kind=small
    Ann, Ida Ann
  sex=m she=he kind=tall
    Tom
category look: name
  kind=small
    red, old
  kind=small+tall
    big
"""
)
VARIABLES = "let p q: person\nlet look: look\n"


def grammar_of(rules: str) -> Grammar:
    return read_grammar(VARIABLES + rules, CATEGORIES)


# ---------------------------------------------------------------- brute force


def chances(law: Law, values: dict[str, int]) -> list[Fraction]:
    left = list(law.weights)
    for mask in law.masks:
        allowed = mask.allowed[tuple(values[variable] for variable in mask.variables)]
        left = [weight if ok else 0 for weight, ok in zip(left, allowed, strict=True)]
    return [Fraction(weight, sum(left)) for weight in left]


def expand(grammar: Grammar, items: Template, values: dict[str, int]) -> Iterator[tuple[str, Fraction, dict[str, int]]]:
    """Every derivation of the items: its text, its probability and the variables after it."""
    if not items:
        yield "", Fraction(1), values
        return
    item, rest = items[0], items[1:]
    firsts: list[tuple[str, Fraction, dict[str, int]]] = []
    if isinstance(item, FixedText):
        firsts = [(item.text, Fraction(1), values)]
    elif isinstance(item, Mention):
        firsts = [(item.strings[values[item.variable]], Fraction(1), values)]
    elif isinstance(item, Draw):
        for word, chance in enumerate(chances(item.law, values)):
            firsts.append((item.strings[word], chance, {**values, item.variable: word} if item.variable else values))
    elif isinstance(item, Alternatives):
        for option, chance in zip(item.options, chances(item.law, values), strict=True):
            firsts += [(t, chance * p, after) for t, p, after in expand(grammar, option, values) if chance]
    elif isinstance(item, RuleCall):
        rule, names = grammar.rules[item.rule], dict(item.names)
        inner = {own: values[names[own]] for own in rule.takes}
        for text, chance, after in expand(grammar, (rule.body,), inner):
            firsts.append((text, chance, {**values, **{names[own]: after[own] for own in rule.gives}}))
    for text, chance, after in firsts:
        if chance:
            yield from ((text + t, chance * p, last) for t, p, last in expand(grammar, rest, after))


# ---------------------------------------------------------------- random small grammars

SIGNATURES = (((), ()), (("p",), ()), (("p", "q"), ()), ((), ("p",)), (("p",), ("q",)))


@st.composite
def grammars(draw: st.DrawFn, first: str = "") -> Grammar:
    signatures = [SIGNATURES[0], *draw(st.lists(st.sampled_from(SIGNATURES), min_size=1, max_size=3))]
    rules = []
    for index, (takes, gives) in enumerate(signatures):
        header = f"r{index}({' '.join(takes)})" + (f" -> {' '.join(gives)}" if gives else "")
        guards = ["", *(["", "[p.sex=f]", "[p.sex!=f]"] if "p" in takes else [])]
        guards += ["[p.sex=q.sex]", "[p.sex!=q.sex]"] if "q" in takes else []
        options = []
        for option in range(draw(st.integers(1, 3))):
            guard = draw(st.sampled_from(guards)) if option else ""
            known = {*takes}
            start = draw(st.sampled_from(["", "x ", "x y "])) + "".join(f"{{new {v}}} " for v in gives)
            later = {f"r{i}": s for i, s in enumerate(signatures) if i > index}
            body = template(draw, known | {*gives}, later, draw(st.integers(0, 3)))
            weight = draw(st.integers(1, 3))
            options.append(f"  {weight}{' ' if guard else ''}{guard}: {start}{body}.")
        rules.append("\n".join([header, *options]))
    return grammar_of(first + "\n".join(rules) + "\n")


def template(
    draw: st.DrawFn, known: set[str], later: dict[str, tuple[tuple[str, ...], tuple[str, ...]]], n: int
) -> str:
    pieces = []
    for _ in range(n):
        choices = ["x", "y", "x y", "{any look}", "{any person}", "(x|y*2)", "(x |)y", "({any look}|x y)"]
        choices += (
            [f"{{{v}}}" for v in known] + [f"{{{v}.she}}" for v in known] + [f"{{any look ~ {v}}}" for v in known]
        )
        choices += [f"({{{v}}} x|{{{v}}} y y|)" for v in known] + [f"{{new {v}}}" for v in {"p", "q"} - known]
        for rule, (takes, gives) in later.items():
            if {*takes} <= known and not {*gives} & known and (not gives or known <= {*takes}):
                choices += [f"<{rule}>"] * 2
        piece = draw(st.sampled_from(sorted(choices)))
        known |= {piece[5]} if piece.startswith("{new") else {*later[piece[1:-1]][1]} if piece[0] == "<" else set()
        pieces.append(piece)
    return " ".join(pieces)
