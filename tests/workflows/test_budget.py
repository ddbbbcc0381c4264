"""A training within minutes ends with them, on a machine that is slower or faster than it was when it was measured."""

import itertools
import math
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pair_helpers import tiny_translator, write_pairs
from torch import Tensor, nn
from workflow_helpers import tiny, write_text

from clearhead.config import RunConfig, TrainConfig
from clearhead.config.presets import PRESETS
from clearhead.errors import UsageError
from clearhead.training import Evaluated, SaveDue, Stepped, TrainingState, fit
from clearhead.training.loss import counted_tokens
from clearhead.workflows import budget, train
from clearhead.workflows.budget import TOLERANCE, Budget, measure_pace
from clearhead.workflows.events import Replanned, WorkflowEvent
from clearhead.workflows.planning import choose_start, collect_settings, plan
from clearhead.workflows.tasks import CausalTask, Task, open_task


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def simulated(
    planned: int, seconds: Callable[[int], float], *, minutes: float, pause: float, most: int = 10**9
) -> tuple[float, int, int]:
    """A training of steps that take so long: the seconds it took, its steps, and how often it was replanned."""
    clock, every, steps_planned = Clock(), max(1, planned // 5), planned
    plan = Budget(100 + 60 * minutes, steps=planned, most=most, eval_every=every, pause=pause, clock=clock)
    changes = 0
    for step in itertools.count():  # pragma: no branch
        if step and step >= steps_planned:
            return clock.now - 100, step, changes
        steps = plan.steps(step)
        assert step < steps <= most
        changes, steps_planned = changes + (steps != steps_planned), steps
        clock.now += seconds(step)
        if (step + 1) % every == 0 or step + 1 == steps_planned:
            clock.now += pause
            plan.take(Evaluated(step + 1, 1.0, 10, best=False))
    raise AssertionError


@pytest.mark.sampled
@pytest.mark.parametrize("minutes", [0.5, 2, 10])
@pytest.mark.parametrize("slower", [0.2, 0.7, 1, 1.5, 5])
@pytest.mark.parametrize("from_step", [0, 200])
def test_the_time_is_kept_whatever_the_machine_does(minutes: float, slower: float, from_step: int) -> None:
    """The plan believes in 20 ms a step, and the machine changes at the start or on the way."""
    draw = random.Random(f"{minutes} {slower}")
    planned = int(0.85 * 60 * minutes / 0.02)

    def seconds(step: int) -> float:
        return 0.02 * draw.uniform(0.8, 1.2) * (slower if step >= from_step else 1)

    taken, _, changes = simulated(planned, seconds, minutes=minutes, pause=0.6)
    assert taken == pytest.approx(60 * minutes, rel=0.1)
    assert changes <= 60, "a plan that nearly holds is left alone"


def test_a_plan_that_holds_is_not_changed() -> None:
    taken, steps, changes = simulated(1000, lambda step: 0.06, minutes=1, pause=0.0)
    assert (steps, changes) == (1000, 0)
    assert taken == pytest.approx(60, rel=TOLERANCE)


def test_no_more_steps_than_are_enough() -> None:
    assert simulated(100, lambda step: 0.001, minutes=10, pause=0.1, most=130)[1] == 130


def test_a_machine_that_stops_ends_the_training_with_its_last_step_evaluated() -> None:
    _, steps, _ = simulated(1000, lambda step: 0.01 if step < 50 else 30.0, minutes=1, pause=0.1)
    assert 50 < steps < 60


class Line(nn.Module):
    """Two logits from one number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.Tensor(self.linear(x))


@pytest.mark.parametrize(("first", "then"), [(20, 8), (8, 20), (5, 6)])
def test_the_loop_takes_as_many_steps_as_it_is_told_on_the_way(first: int, then: int) -> None:
    """The last step is evaluated and saved, and its rate is where the schedule ends."""
    model = Line()
    config = TrainConfig(
        steps=first, warmup_steps=0, schedule="linear", min_lr_ratio=0.0, eval_every=100, save_every=100
    )
    batch = torch.ones(2, 3, 1), torch.zeros(2, 3, dtype=torch.int64)
    state = TrainingState()
    events = list(
        fit(model, config, lambda step: batch, seed=1, state=state, steps=lambda step: first if step < 4 else then)
    )
    steps = [event for event in events if isinstance(event, Stepped)]
    assert [event.step for event in steps] == list(range(1, then + 1))
    assert isinstance(events[-1], SaveDue)
    assert steps[-1].learning_rate == pytest.approx(config.learning_rate / then)
    assert steps[3].learning_rate == pytest.approx(config.learning_rate * (1 - 3 / first))


def test_a_run_keeps_the_number_of_steps_that_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the budget changes is said, and is in clearhead.toml, so that resume and list speak of it."""
    monkeypatch.setattr(budget, "seconds_per_step", lambda *arguments, **options: 1e-5)
    write_text(200_000)
    events: list[WorkflowEvent] = []
    run = train("my.txt", out="run", minutes=0.15, options={"model": tiny()["model"]}, on_event=events.append)
    totals = [event.steps for event in events if isinstance(event, Replanned)]
    steps = [event.step for event in events if isinstance(event, Stepped)]
    assert totals
    assert run.config.train.steps == steps[-1] == totals[-1] == len(steps)


def config_for(name: str, source: Path) -> tuple[RunConfig, CausalTask]:
    config = RunConfig.read(PRESETS[name].options, {"data": {"source": str(source), "tokenizer": "char"}})
    task = CausalTask.open(config.data)
    return RunConfig.read(config.model_dump(), {"model": task.model_settings()}), task


def test_a_model_that_is_too_large_for_the_time_is_refused_without_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the time that it needs, and the presets that can."""
    config, text = config_for("gpt2", write_text(100_000))
    monkeypatch.setattr(budget, "operations_per_second", lambda config: 1e11)

    def seconds(preset: RunConfig, task: Task, **options: float) -> float:
        assert preset.model != config.model, "a step of what is refused was taken"
        return 0.01

    monkeypatch.setattr(budget, "seconds_per_step", seconds)
    with pytest.raises(UsageError, match=r"fewer than 100 steps fit into 0\.2 minutes.* `preset='tiny'`") as refusal:
        measure_pace(0.2, time.perf_counter(), config, text)
    assert "gpt2" not in str(refusal.value)
    needed = float(str(refusal.value).split("`minutes=")[1].split("`")[0])
    monkeypatch.setattr(budget, "seconds_per_step", lambda *arguments, **options: 0.01)
    assert measure_pace(2 * needed, time.perf_counter(), config, text).steps >= 100


def test_a_step_that_takes_too_long_is_refused_after_one(monkeypatch: pytest.MonkeyPatch) -> None:
    config, text = config_for("medium", write_text(100_000))
    monkeypatch.setattr(budget, "operations_per_second", lambda config: math.inf)
    patience: list[float] = []

    def one_step(config: RunConfig, task: Task, **options: float) -> float:
        patience.append(options["patience"])
        return 10.0

    monkeypatch.setattr(budget, "seconds_per_step", one_step)
    with pytest.raises(UsageError, match="fewer than 100 steps"):
        measure_pace(1, time.perf_counter(), config, text)
    assert patience[0] <= 60 * 0.02


@pytest.mark.parametrize(
    ("seconds", "is_refused"),
    [
        ([0.23, 0.11], False),  # the machine was busy for a moment
        ([0.23, 0.4, 0.3, 0.11], False),
        ([0.23] * budget.ATTEMPTS, True),
        ([0.11], False),  # measured once where nothing is in doubt
        ([3.0], True),
    ],
)
def test_a_refusal_is_measured_again(seconds: list[float], is_refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config, text = config_for("medium", write_text(100_000))
    monkeypatch.setattr(budget, "operations_per_second", lambda config: math.inf)
    measured = iter(seconds)
    monkeypatch.setattr(budget, "seconds_per_step", lambda *arguments, **options: next(measured))
    monkeypatch.setattr(budget, "_fitting_presets", lambda *arguments: [])
    minutes = 100 * 0.15 / budget.SHARE_FOR_STEPS / 60  # room for a hundred steps of 0.15 s
    start_time = time.perf_counter() + budget.FINISH_SECONDS
    if is_refused:
        with pytest.raises(UsageError, match="fewer than 100 steps"):
            measure_pace(minutes, start_time, config, text)
    else:
        assert measure_pace(minutes, start_time, config, text).per_step == min(seconds)
    assert list(measured) == [], "measured as often as it takes, and no more"


@pytest.mark.parametrize(
    ("name", "minutes", "is_refused"),
    [("tiny", 0.5, False), ("tiny", 3, False), ("small", 3, False), ("small", 0.5, True), ("medium", 3, True)],
)
def test_what_would_be_chosen_without_a_word_is_never_refused(
    name: str, minutes: float, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what is smaller: no advice could help there, and a machine that is so slow is busy for now."""
    config, text = config_for(name, write_text(100_000))
    monkeypatch.setattr(budget, "operations_per_second", lambda config: 1e3)
    monkeypatch.setattr(budget, "seconds_per_step", lambda *arguments, **options: 60.0)
    if is_refused:
        with pytest.raises(UsageError, match="fewer than 100 steps"):
            measure_pace(minutes, time.perf_counter(), config, text)
    else:
        pace = measure_pace(minutes, time.perf_counter(), config, text)
        assert pace.warnings(config)[0].startswith("note: the machine is so slow now")


@pytest.mark.parametrize("objective", ["causal", "masked", "seq2seq"])
def test_the_speed_of_the_plan_counts_the_tokens_that_the_steps_count(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a translator the target's, and of an encoder the masked ones: else the plan promises twice the speed."""
    source = write_pairs(800) if objective == "seq2seq" else write_text(100_000)
    options = tiny_translator() if objective == "seq2seq" else tiny()
    measured = {"operations_per_second": math.inf, "seconds_per_step": 0.3}
    for name, value in measured.items():
        monkeypatch.setattr(budget, name, lambda *arguments, value=value, **options: value)
    shape = {"model": options["model"], "train": {"batch_size": 8}, "data": options.get("data", {})}
    start = choose_start(collect_settings(source, None, {**shape, "objective": objective}), minutes=1)
    task = open_task(start.config)
    planned = plan(start, task)
    [reason] = [reason for reason in planned.reasons if reason.startswith("training: ")]
    [(speed, _)] = re.findall(r"([0-9,]+) (target |masked |)tokens/s", reason)
    steps = [counted_tokens(task.batches(planned.config)(step)[-1]) for step in range(40)]
    assert float(speed.replace(",", "")) == pytest.approx(sum(steps) / len(steps) / 0.3, rel=0.2)


@pytest.mark.parametrize(("slow", "named"), [(True, ["tiny"]), (False, ["small", "tiny"])])
def test_what_is_recommended_was_measured(slow: bool, named: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is slower than its operations on paper; what the sentence names must not be refused in the next call."""
    config, text = config_for("medium", write_text(400_000))
    small, _ = config_for("small", Path("my.txt"))
    monkeypatch.setattr(budget, "operations_per_second", lambda tried: 1e10 if tried == config else 1e15)

    def seconds(preset: RunConfig, task: Task, **options: float) -> float:
        return 1.0 if slow and preset.model == small.model else 0.01

    monkeypatch.setattr(budget, "seconds_per_step", seconds)
    with pytest.raises(UsageError, match="take a smaller model: ") as refusal:
        measure_pace(0.1, time.perf_counter(), config, text)
    names = re.findall("`preset='([a-z]+)'`", str(refusal.value))
    assert [name for name in names if name in ("small", "tiny")] == named


def test_a_model_that_sees_few_tokens_is_said_to_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "operations_per_second", lambda config: math.inf)
    monkeypatch.setattr(budget, "seconds_per_step", lambda *arguments, **options: 0.1)
    for name, warned in (("nanogpt-baby", True), ("tiny", False)):
        config, text = config_for(name, write_text(150_000, f"{name}.txt"))
        pace = measure_pace(0.5, time.perf_counter(), config, text)
        planned = config.model_copy(update={"train": config.train.model_copy(update={"steps": pace.steps})})
        assert bool(pace.warnings(planned)) == warned
