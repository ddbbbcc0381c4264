"""A model that learns to copy has induction heads, and the induction score names those that copying needs."""

import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "benchmarks" / "experiments"


@pytest.mark.campaign
@pytest.mark.parametrize("seed", [1, 2])
def test_without_the_heads_that_the_score_names_copying_is_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    import induction  # type: ignore[import-not-found, unused-ignore]

    result = induction.ablate(induction.learn(seed, steps=400, layers=3, heads=4), seed)
    for name in ("induction", "trials"):
        sys.modules.pop(name, None)
    assert 0 < len(result.induction) <= 6
    assert result.previous
    assert min(layer for layer, _ in result.induction) > min(layer for layer, _ in result.previous)
    assert result.whole < 0.3
    assert result.without_induction > result.fresh
    assert result.without_others < 1
    assert result.without_previous > result.without_others
