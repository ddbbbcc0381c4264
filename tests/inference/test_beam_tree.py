"""The tree of a search against the search itself: the same translations, in the order of every length penalty."""

from typing import Any

import numpy as np
import pytest
from small_translators import END, random_translator, sources

from clearhead.config import TranslationConfig
from clearhead.inference.beam import BeamStep, beam_search
from clearhead.inference.beam_tree import beam_tree

every_shape = pytest.mark.parametrize(("seed", "beam_size", "longest"), [(0, 1, 9), (1, 4, 3), (2, 5, 12), (3, 3, 1), (4, 90, 4)])  # fmt: skip  # noqa: E501


def config(**options: Any) -> TranslationConfig:
    return TranslationConfig.read(options)


@every_shape
def test_ranked_by_another_penalty_it_is_what_a_search_with_that_penalty_finds(
    seed: int, beam_size: int, longest: int
) -> None:
    model = random_translator(6, seed)
    for source in sources(3, 6, vocab_size=6):
        tree = beam_tree(model, source, config(beam_size=beam_size, max_new_tokens=longest), end=END)
        for alpha in (0.0, 0.6, 1.0, 3.0):
            options = config(beam_size=beam_size, n_best=beam_size, length_penalty=alpha, max_new_tokens=longest)
            [expected] = beam_search(model, [source], options, end=END)
            ranked = [hypothesis for _, hypothesis in tree.ranked(alpha)]
            assert [hypothesis.ids for hypothesis in ranked[:beam_size]] == [hypothesis.ids for hypothesis in expected]
            assert [hypothesis.score for hypothesis in ranked[:beam_size]] == pytest.approx(
                [hypothesis.score for hypothesis in expected], rel=1e-12
            )


@every_shape
def test_a_node_follows_its_parent_and_is_less_likely(seed: int, beam_size: int, longest: int) -> None:
    model, source = random_translator(6, seed), sources(1, 6, vocab_size=6)[0]
    tree = beam_tree(model, source, config(beam_size=beam_size, max_new_tokens=longest), end=END)
    for index, node in enumerate(tree.nodes):
        assert (node.token == END) == (node.state == "finished")
        if node.parent is None:
            assert node.step == 0
        else:
            parent = tree.nodes[node.parent]
            assert (parent.step, parent.state) == (node.step - 1, "kept")
            assert node.log_prob <= parent.log_prob
        assert len(tree.ids(index)) == node.step + (node.state != "finished")
    kept = [sum(node.step == step and node.state != "finished" for node in tree.nodes) for step in range(longest)]
    assert max(kept) <= beam_size


def test_an_observed_search_finds_the_same() -> None:
    model, rows, steps = random_translator(6, 0), sources(4, 6, vocab_size=6), list[BeamStep]()
    options = config(beam_size=3, n_best=2)
    expected = beam_search(model, rows, options, end=END)
    assert beam_search(model, rows, options, end=END, on_step=steps.append) == expected
    assert all(len(step.sources) == len(step.scores) == len(step.kept) == len(step.finished) for step in steps)
    counts = np.zeros(len(rows), np.int64)
    for step in steps:
        np.add.at(counts, step.sources, step.finished.sum(axis=1))
    assert (counts <= 3).all()
