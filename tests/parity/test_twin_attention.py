"""The attention that a trace shows is the twin's, whatever the configuration."""

from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from twin_cases import Case, draw_case

from clearhead import reference
from clearhead.inspection import attention_sites, record
from clearhead.reference import AttentionSteps, as_float64, positions_of

N_CASES, TOLERANCE = 320, 1e-10


@cache
def case_of(seed: int) -> Case:
    return draw_case(seed)


def steps_of(case: Case) -> list[AttentionSteps]:
    """What the twin's attentions compute, in order."""
    steps: list[AttentionSteps] = []
    weights = as_float64(case.model.state_dict())
    reference.FORWARDS[case.config.architecture](weights, case.config, *case.ids, **case.options, kept=steps)
    return steps


def real_queries(case: Case, kind: str) -> NDArray[np.bool_]:
    """(B, T_q): which queries of an attention are tokens; what padding attends to means nothing."""
    if kind != "encoder":
        return case.real >= 0
    positions = case.options.get("source_positions")
    return (positions_of(case.ids[0], case.config.pad_id) if positions is None else positions) >= 0


@pytest.mark.parametrize("seed", range(N_CASES))
def test_recorded_attention_is_the_twins(seed: int) -> None:
    case = case_of(seed)
    if case.config.architecture == "bigram":
        return  # it has no attention
    with torch.no_grad(), record(case.model) as trace:
        case.torch()
    sites, steps = attention_sites(case.model), steps_of(case)
    assert len(sites) == len(steps) > 0
    for site, twin in zip(sites, steps, strict=True):
        real = real_queries(case, site.kind)[:, np.newaxis, :, np.newaxis]  # (B, 1, T_q, 1)
        scores = trace[f"{site.name}.scores"]
        allowed = np.isfinite(scores)
        assert (twin.weights[~allowed & real] == 0).all()
        recorded = {"scores": np.where(allowed, scores, 0)} | {
            step: trace[f"{site.name}.{step}"] for step in ("q", "attention", "mixed")
        }
        expected = {"scores": np.where(allowed, twin.scores, 0), "q": twin.query}
        for step, numbers in (expected | {"attention": twin.weights, "mixed": twin.mixed}).items():
            difference = np.abs(np.where(real, recorded[step] - numbers, 0)).max()
            assert difference <= TOLERANCE, f"{site.name}.{step} differs by {difference:.1e} with {case.config!r}"


def test_the_comparison_would_notice_a_head_in_anothers_place() -> None:
    case = next(case for case in map(case_of, range(N_CASES)) if case.config.n_heads > 1 and case.real.max() > 1)
    with torch.no_grad(), record(case.model, "*.attention") as trace:
        case.torch()
    twin = steps_of(case)[0].weights
    assert np.abs(trace[trace.names[0]][:, ::-1] - twin).max() > TOLERANCE
