import math
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.config import TrainConfig
from clearhead.training.schedules import SCHEDULES, learning_rate

NAMES = sorted(SCHEDULES)


def config(**options: Any) -> TrainConfig:
    return TrainConfig.read({"learning_rate": 0.02, "steps": 200, "warmup_steps": 20, "min_lr_ratio": 0.1}, options)


def rates(settings: TrainConfig) -> list[float]:
    return [learning_rate(settings, step) for step in range(settings.steps + 1)]


def test_the_names_are_those_of_the_config() -> None:
    assert set(SCHEDULES) == set(get_args(TrainConfig.model_fields["schedule"].annotation))


@given(
    name=st.sampled_from(NAMES),
    steps=st.integers(1, 60),
    warmup=st.integers(0, 80),
    final=st.floats(0, 1),
    step=st.integers(0, 200),
)
def test_every_rate_lies_between_zero_and_the_peak(name: str, steps: int, warmup: int, final: float, step: int) -> None:
    settings = config(schedule=name, steps=steps, warmup_steps=warmup, min_lr_ratio=final)
    rate = learning_rate(settings, step)
    assert 0 <= rate <= settings.learning_rate
    assert rate > 0 or step >= steps, "no step of the training is wasted on a rate of zero"


@pytest.mark.parametrize("name", NAMES)
def test_warmup_is_a_straight_line_that_ends_at_the_peak(name: str) -> None:
    rise = rates(config(schedule=name))[:20]
    assert rise == pytest.approx([0.02 * (step + 1) / 20 for step in range(20)])


@pytest.mark.parametrize("name", NAMES)
def test_after_warmup_the_rate_never_rises(name: str) -> None:
    fall = rates(config(schedule=name))[19:]
    assert all(later <= sooner for sooner, later in pairwise(fall))


@pytest.mark.parametrize("name", ["linear", "cosine", "warmup_stable_decay"])
def test_decay_ends_at_the_final_rate_and_stays(name: str) -> None:
    settings = config(schedule=name)
    assert learning_rate(settings, 200) == pytest.approx(0.002)
    assert learning_rate(settings, 5000) == pytest.approx(0.002)


def test_the_shapes_are_what_they_are_called() -> None:
    halfway = 20 + 90
    assert learning_rate(config(schedule="constant"), halfway) == 0.02
    assert learning_rate(config(schedule="linear"), halfway) == pytest.approx(0.02 * (1 + 0.1) / 2)
    quarter = 0.02 * (0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2)
    assert learning_rate(config(schedule="cosine"), 20 + 45) == pytest.approx(quarter)
    stable = rates(config(schedule="warmup_stable_decay"))
    assert set(stable[19:161]) == {0.02}
    assert stable[170] == pytest.approx(0.02 * (0.1 + 0.9 * 0.5)), "a quarter into the cool-down, half of the way down"


def test_inverse_sqrt_is_equation_3_scaled_to_its_peak() -> None:
    settings = config(schedule="inverse_sqrt", warmup_steps=40)

    def vaswani(step: int) -> float:
        return float(512**-0.5 * min(step**-0.5, step * 40**-1.5))

    expected = [0.02 * vaswani(step + 1) / vaswani(40) for step in range(201)]
    assert rates(settings) == pytest.approx(expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("warmup", [5, 6, 1000])
def test_a_training_shorter_than_its_warmup_only_warms_up(name: str, warmup: int) -> None:
    settings = config(schedule=name, steps=5, warmup_steps=warmup)
    assert rates(settings)[:5] == pytest.approx([0.02 * (step + 1) / warmup for step in range(5)])
