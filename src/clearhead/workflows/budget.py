"""A budget of time: how many steps fit into it at first, and before every step, by how long the last ones took."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from clearhead.config import RunConfig
from clearhead.config.presets import PRESETS, default_preset
from clearhead.errors import UsageError
from clearhead.inspection import estimate_cost
from clearhead.training import Evaluated, Event, SaveDue
from clearhead.training.loss import counted_tokens
from clearhead.wording import counted
from clearhead.workflows.events import Observer, Replanned
from clearhead.workflows.hardware import choose_device, operations_per_second, seconds_per_step
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.tasks import Task

FINISH_SECONDS = 2.0  # for the report, after the last step
SHARE_FOR_STEPS = 0.85  # of the time that is left when training begins; evaluations and samples take the rest
MARGIN = 1.2  # by which what is recommended must fit, so that it is not refused a moment later
MIN_STEPS = 100  # in which a model learns something
MIN_TOKENS = 0.5  # per parameter that is not in an embedding; with fewer, a smaller model may learn more
MAX_PASSES = 40  # over the text; more only learns it by heart
PASSES_OF_A_STEP = 3  # a step costs as much as so many forward passes, of which an evaluation is one
RECENT_SECONDS = 15.0  # of steps, whose mean predicts the next ones
ATTEMPTS = 4  # measurements, of about a second each, before a model is refused
BUSY = 8  # so many times slower a step may be in a busy moment; a model that is slower yet is too large
BATCHES_TO_COUNT = 8  # whose mean is the number of tokens in a step
TO_PREDICT = 3  # steps at least before anything is predicted
TOLERANCE = 0.04  # share of the steps by which a prediction may miss the plan; the schedule changes no more than needed


class Budget:
    """Counts the steps that fit between now and a deadline.

    A pause is the extra time that an evaluation, its sample and its checkpoint take.
    """

    def __init__(
        self,
        deadline: float,
        *,
        steps: int,
        most: int,
        eval_every: int,
        pause: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start a budget.

        Args:
            deadline: when the last step is to be done, evaluated and saved, in seconds of `clock`.
            steps: how many were planned.
            most: how many are enough, however much time is left.
            eval_every: steps between two pauses.
            pause: seconds that a pause is expected to take, until one has been measured.
        """
        self.deadline, self.planned, self.most, self.eval_every, self.clock = deadline, steps, most, eval_every, clock
        self.expected_pause = pause
        self.pauses: list[float] = []
        self.recent: deque[float] = deque()
        self.recent_seconds = 0.0  # their sum
        self.asked_at: float | None = None
        self.is_first = True  # a first step warms up, or compiles
        self.has_paused = False

    @classmethod
    def until(cls, wall_deadline: float, config: RunConfig, task: Task) -> "Budget":
        """The rest of a budget, for a training that goes on until the time it was first to be done by.

        Args:
            wall_deadline: that time, in seconds of `time.time`, which other processes know as well.
        """
        steps, every = config.train.steps, config.train.eval_every
        deadline = time.perf_counter() + wall_deadline - time.time()
        return cls(deadline, steps=steps, most=max(steps, _enough(config, task)), eval_every=every, pause=0.0)

    @property
    def wall_deadline(self) -> float:
        """The deadline in seconds of `time.time`."""
        return time.time() + self.deadline - self.clock()

    def take(self, event: Event) -> None:
        """Learn from an event of the loop that the step before was followed by a pause."""
        self.has_paused |= isinstance(event, Evaluated | SaveDue)

    def steps(self, step: int) -> int:
        """The number of steps in all, after `step` of them: at least one more, at most as many as are enough."""
        now = self.clock()
        if self.asked_at is not None:
            self._measure(now - self.asked_at)
        self.asked_at = now
        if len(self.recent) >= TO_PREDICT:
            fitting = max(step + 1, min(self.most, step + self._fitting(self.deadline - now)))
            if abs(fitting - self.planned) > TOLERANCE * self.planned:
                self.planned = fitting
        return self.planned

    def _measure(self, seconds: float) -> None:
        """Learn from the time since the step before was asked for."""
        if self.has_paused:
            if self.recent:
                self.pauses.append(max(0.0, seconds - self._step_seconds()))
        elif not self.is_first:
            self.recent.append(seconds)
            self.recent_seconds += seconds
            while len(self.recent) > TO_PREDICT and self.recent_seconds > RECENT_SECONDS:
                self.recent_seconds -= self.recent.popleft()
        self.has_paused = self.is_first = False

    def _step_seconds(self) -> float:
        return self.recent_seconds / len(self.recent)

    def _fitting(self, left: float) -> int:
        """Steps that fit into so many seconds, with the pauses between them and the one at the end."""
        pause = sum(self.pauses) / len(self.pauses) if self.pauses else self.expected_pause
        per_step = self._step_seconds() + pause / self.eval_every
        return int((left - pause) / per_step)


def apply_budget(
    budget: Budget, events: Iterator[Event], run: RunFolder, config: RunConfig, on_event: Observer
) -> Iterator[Event]:
    """The same events; what the budget changes is said, and is in the run's options before the next checkpoint."""
    written = announced = config.train.steps
    for event in events:
        budget.take(event)
        if budget.planned != announced:
            announced = budget.planned
            on_event(Replanned(announced))
        if isinstance(event, SaveDue) and budget.planned != written:
            written = budget.planned
            run.write_config(RunConfig.read(config.model_dump(), {"train": {"steps": written}}))
        yield event


@dataclass(frozen=True)
class Pace:
    """How fast the machine trains, and how many steps fit into the time by that."""

    deadline: float
    per_step: float
    steps: int
    most: int
    reason: str

    def budget(self, config: RunConfig, held_out: int) -> Budget:
        """What the training asks, before each step, how many there are to be."""
        train = config.train
        tokens = train.eval_tokens or held_out
        share = tokens / (PASSES_OF_A_STEP * train.batch_size * config.model.block_size)  # of a step's time
        return Budget(
            self.deadline, steps=self.steps, most=self.most, eval_every=train.eval_every, pause=share * self.per_step
        )

    def warnings(self, config: RunConfig) -> list[str]:
        """A word where a model is so large that it will hardly be trained."""
        tokens = config.train.steps * config.train.batch_size * config.model.block_size
        parts = estimate_cost(config.model).parts
        parameters = sum(size for part, size in parts.items() if "embedding" not in part and part != "head")
        if self.steps < min(MIN_STEPS, self.most):
            return ["note: the machine is so slow now that this model will hardly learn; give it more time"]
        if tokens >= MIN_TOKENS * parameters or self.steps == self.most:
            return []
        return [
            f"note: this model will see {tokens / parameters:.1g} tokens for each parameter of its layers; "
            "a smaller one may learn more in the same time"
        ]


def measure_pace(
    minutes: float, start_time: float, config: RunConfig, task: Task, *, is_new: bool = True, is_default: bool = False
) -> Pace:
    """Measure a step, and refuse a model that is too large for the time, if somebody chose it.

    Args:
        minutes: how long everything may take, from `start_time` on, in seconds of `time.perf_counter`.
        is_new: the model is not trained yet, so that another preset could take its place.
        is_default: nobody chose the model. It is small, as is one that somebody chose and that is no larger: a machine
            that is too slow for it is only busy for now.

    Raises:
        UsageError: fewer than a hundred steps of a model that somebody chose fit into the time, and it is larger than
            what is taken by default in so much time.
    """
    deadline = start_time + 60 * minutes - FINISH_SECONDS
    available = SHARE_FOR_STEPS * max(deadline - time.perf_counter(), 30 * minutes)
    enough = _enough(config, task)
    fewest = min(MIN_STEPS, enough)
    is_small = is_default or (is_new and _is_small(config, task, minutes))
    per_step = _least_seconds(config, task)
    if fewest * per_step < available or is_small:
        per_step = _confirmed_seconds(config, task, allowed=available / fewest, attempts=1 if is_small else ATTEMPTS)
    if fewest * per_step > available and not is_small:
        raise UsageError(_too_large(minutes, per_step, fewest, available, config, task, is_new=is_new))
    steps = max(1, int(available / per_step))
    if steps > enough:
        reason = f"{MAX_PASSES} passes over the data; more would only learn it by heart"
    else:
        speed = f"{_tokens_per_step(config, task) / per_step:,.0f} {task.counted}/s"
        reason = f"{counted(minutes, 'minute')} at {speed} measured on {_machine(config)}"
    return Pace(deadline, per_step, min(steps, enough), enough, reason)


def _enough(config: RunConfig, task: Task) -> int:
    """Steps after which more would only learn the data by heart."""
    return max(1, int(MAX_PASSES * task.steps_per_pass(config)))


def _confirmed_seconds(config: RunConfig, task: Task, *, allowed: float, attempts: int) -> float:
    """What a step takes; one that takes a little longer than allowed is measured again, since the machine may be busy.

    Args:
        allowed: seconds.
        attempts: measurements at most, of which the shortest counts.
    """
    per_step = math.inf
    for _ in range(attempts):
        per_step = min(per_step, seconds_per_step(config, task, patience=2 * allowed))
        if not allowed < per_step < BUSY * allowed:
            break
    return per_step


def _tokens_per_step(config: RunConfig, task: Task) -> float:
    """The tokens of a step that the loss counts, which are all that the lines about steps speak of."""
    batches = task.batches(config)
    return statistics.mean(counted_tokens(batches(step)[-1]) for step in range(BATCHES_TO_COUNT))


def _step_flops(config: RunConfig) -> float:
    """Operations of a training step: forward, and twice as many backward; at least one, of a table that has none."""
    tokens = config.train.batch_size * config.model.block_size
    return max(1.0, 3.0 * estimate_cost(config.model).flops_per_token * tokens)


def _is_small(config: RunConfig, task: Task, minutes: float) -> bool:
    """Whether a step takes no more operations than one of the preset that is the default for so much time."""
    default = _as_preset(default_preset(config.objective, minutes), config, task)
    return _step_flops(config) <= _step_flops(task.fit_to_data(default, {})[0])


def _least_seconds(config: RunConfig, task: Task) -> float:
    """What no step can be faster than; of rows that are filled up with padding, only what they hold counts."""
    filled = task.batches(config)(0)[-1].numel() / (config.train.batch_size * config.model.block_size)
    return min(1.0, filled) * _step_flops(config) / operations_per_second(config)


def _too_large(
    minutes: float, per_step: float, fewest: int, available: float, config: RunConfig, task: Task, *, is_new: bool
) -> str:
    """Why a model cannot be trained in the time, and which can."""
    needed = minutes * fewest * per_step / available
    advice = [f"give it `minutes={math.ceil(10 * needed) / 10:g}`"]
    if is_new:
        smaller = _fitting_presets(available, config, task)
        advice += [f"take a smaller model: {' or '.join(f'`preset={name!r}`' for name in smaller)}"] if smaller else []
        advice += [] if smaller else ["let Clearhead choose the model"]
    advice.append("lower `train.batch_size`")
    step = f"{per_step:,.0f}" if per_step >= 10 else f"{per_step:.2g}"
    return (
        f"this model takes at least {step} seconds a step here, so fewer than {fewest} steps fit into "
        f"{counted(minutes, 'minute')}, and it would learn little; {', or '.join(advice)}"
    )


def _fitting_presets(available: float, config: RunConfig, task: Task) -> list[str]:
    """The presets, the largest first, of which enough steps fit into the time: as measured, and by their operations."""
    names = [name for name, entry in PRESETS.items() if entry.objective == config.objective]
    presets = {name: task.fit_to_data(_as_preset(name, config, task), {})[0] for name in names}
    operations = {name: _step_flops(preset) for name, preset in presets.items()}
    smaller = [name for name in names if operations[name] < _step_flops(config)]
    per_operation: float | None = None  # seconds, of the largest that fits
    fitting = []
    for name in sorted(smaller, key=operations.__getitem__, reverse=True):
        preset = presets[name]
        allowed = available / (MARGIN * min(MIN_STEPS, max(1, int(MAX_PASSES * task.steps_per_pass(preset)))))
        if per_operation is None and _least_seconds(preset, task) < allowed:
            seconds = seconds_per_step(preset, task, patience=allowed)
            per_operation = seconds / operations[name] if seconds < allowed else None
        if per_operation is not None and per_operation * operations[name] < allowed:
            fitting.append(name)
    return fitting


def _as_preset(name: str, config: RunConfig, task: Task) -> RunConfig:
    """A preset for the same data."""
    data = {"data": config.data.model_dump(), "model": task.model_settings()}
    return RunConfig.read(PRESETS[name].options, data)


def _machine(config: RunConfig) -> str:
    device = choose_device(config.train.device)
    count = config.train.threads or torch.get_num_threads()
    return counted(count, "CPU thread") if device.type == "cpu" else str(device)
