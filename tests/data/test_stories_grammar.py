"""The machinery behind `stories`, against brute force over every derivation of small random grammars."""

import math
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from small_grammars import CATEGORIES, VARIABLES, expand, grammar_of, grammars

from clearhead.data.stories import parse
from clearhead.data.stories.entropy import measure
from clearhead.data.stories.grammar import Grammar, GrammarError, RuleCall, texts
from clearhead.data.stories.lexicon import read_categories
from clearhead.data.stories.notation import read_grammar
from clearhead.data.stories.unambiguous import ambiguities


@settings(max_examples=80, deadline=None)
@given(grammars())
def test_measure_parser_and_proof_agree_with_brute_force(grammar: Grammar) -> None:
    derivations = [(text, p) for text, p, _ in expand(grammar, (RuleCall(grammar.start, ()),), {})]
    assume(len(derivations) <= 2000)
    assert sum(p for _, p in derivations) == 1

    exact = measure(grammar)
    assert exact.entropy == pytest.approx(-sum(float(p) * math.log(p) for _, p in derivations), abs=1e-9)
    assert exact.characters == pytest.approx(float(sum(p * len(text) for text, p in derivations)), rel=1e-12)

    by_text: dict[str, list[Fraction]] = defaultdict(list)
    for text, p in derivations:
        by_text[text].append(p)
    for text, parts in list(by_text.items())[:50]:
        assert sorted(parse.derivations(grammar, text)) == pytest.approx(sorted(map(math.log, parts)), abs=1e-9)
        assert parse.log_probability(grammar, text) == pytest.approx(math.log(sum(parts)), abs=1e-9)
        if text + "x" not in by_text:
            assert parse.log_probability(grammar, text + "x") == -math.inf

    if not list(ambiguities(grammar)):  # then no text may have two derivations, and the entropy is that of the texts
        assert all(len(parts) == 1 for parts in by_text.values())

    for _, (text, recorded) in zip(range(20), texts(grammar, seed=3), strict=False):
        assert any(recorded == pytest.approx(math.log(p), abs=1e-9) for p in by_text[text])


# ---------------------------------------------------------------- single facts

UNAMBIGUOUS = """
start
  2: <meet> {p.She} saw {q}. <end>
  1: {new p} was (very |)old(*2| and {any look}).
meet -> p q
  1: {new p} met {new q}.
  3: {new p} heard {new q}.
end(p q)
  1 [p.sex=q.sex]: {q} saw {p}.
  2 [p.sex!=q.sex]: {p} saw {q}.
  1: The {new look ~ p} {p} fell.
"""


def test_the_proof_accepts_a_grammar_that_needs_its_finer_arguments() -> None:
    grammar = grammar_of(UNAMBIGUOUS)
    counts = Counter(text for text, _, _ in expand(grammar, (RuleCall(grammar.start, ()),), {}))
    assert list(ambiguities(grammar)) == []
    assert max(counts.values()) == 1


@pytest.mark.parametrize(
    "rules",
    [
        "start\n  1: x.\n  2: x.\n",
        "start\n  1: x\n  2: x y\n",  # one text is the beginning of the other
        "start\n  1: {any look} x.\n  2: red x.\n",
        "start\n  1: (x |)(x |)y.\n",
        "start\n  1: x(| y)( y|).\n",
        "start\n  1: {new p}. <a>\na(p)\n  1: {p.she} x.\n  1: <b>\nb(p)\n  1: she x.\n",
        "start\n  1: {new p} {new q} ({p.she}|{q.she}) x.\n",
        "start\n  1: <a> x.\n  1: {any person} <b>.\na\n  1: {any person}\nb\n  1: x\n  1: y\n",
        "start\n  1: {new p} and {new q} {p}.\n  1: {new q} and {new p} {q}.\n",  # p and q are not the same in both
        "start\n  1: {new p} and {new q} <r> y x.\n  1: {new q} and {new p} <r>.\nr(p q)\n  1: {p} x\n  1: {q} x y x\n",
        "start\n  1: {any loose}.\n",  # "ash" is the beginning of "ash tree"
    ],
)
def test_the_proof_finds_planted_ambiguities(rules: str) -> None:
    loose = read_categories("category loose: name\n  kind=any\n    ash, ash tree\n")
    assert list(ambiguities(read_grammar(VARIABLES + rules, {**CATEGORIES, **loose})))


def test_sampled_frequencies_are_the_exact_probabilities() -> None:
    grammar, n = grammar_of(UNAMBIGUOUS), 20_000
    exact = {text: float(p) for text, p, _ in expand(grammar, (RuleCall(grammar.start, ()),), {})}
    counts = Counter(text for _, (text, _) in zip(range(n), texts(grammar, seed=5), strict=False))
    assert counts.keys() <= exact.keys()
    off = [(counts[text] - n * p) / math.sqrt(n * p * (1 - p)) for text, p in exact.items()]
    assert np.abs(off).max() < 4.5


def test_two_variables_of_one_category_are_never_the_same_word() -> None:
    grammar = grammar_of("start\n  1: {new p} and {new q}\n")
    probabilities = {text: p for text, p, _ in expand(grammar, (RuleCall("start", ()),), {})}
    weights = dict(zip(("Ann", "Ida Ann", "Tom"), CATEGORIES["person"].weights, strict=True))
    expected = {
        f"{a} and {b}": Fraction(weights[a], sum(weights.values()))
        * Fraction(weights[b], sum(weights.values()) - weights[a])
        for a in weights
        for b in weights
        if a != b
    }
    assert probabilities == expected


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ("start\n  1: {p} x.\n", "not yet bound"),
        ("start\n  1: {new p}{new q}.\n", "glued"),
        ("start\n  1: {any look}s.\n", "glued"),
        ("start\n  1: (x|y)z.\n", "glued"),
        ("start\n  1: <a>\na\n  1: x <start>\n", "reaches itself"),
        ("start\n  1: <nowhere>.\n", "there is no rule"),
        ("start\n  1: (x|y.\n", "never closed"),
        ("start\n  1: x) y.\n", "outside brackets"),
        ("start\n  1: {any look.she}.\n", "has a form"),
        ("start\n  1: {new p.she}.\n", "apart"),
        ("start\n  1: <a>\na(p)\n  1: {p}\n", "wrong about p"),
        ("start\n  1: {new p} <a>\na -> q\n  1: {new q}\n", "wrong about p"),  # q could repeat p, which it does not see
        ("start\n  1: <a>\na -> p\n  1: {new p}\n  1: {new q} {new p}\n", "one and the same draw"),
        ("start\n  1: <a>\na -> p\n  1: {new p}\n  1: x\n", "one and the same draw"),
        ("start(p)\n  1: {p}\n", "cannot take"),
        ("start\n one: x\n", "cannot read"),
    ],
)
def test_what_means_nothing_is_refused(rules: str, complaint: str) -> None:
    with pytest.raises(GrammarError, match=complaint):
        grammar_of(rules)
