"""Learning-rate schedules: pure functions of the step, each the share of the peak rate.

`step` counts from 0, the step about to be taken. Every schedule rises linearly over `warmup_steps` first: step s
takes (s + 1) / warmup_steps of the peak, so the first is above zero and the last is the peak.
"""

import math
from collections.abc import Callable, Mapping

from clearhead.config import TrainConfig

Schedule = Callable[[int, TrainConfig], float]

COOLDOWN = 0.2  # the last share of the steps in which warmup_stable_decay decays (Hägele et al. 2024, section 3)


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of `step`, counted from 0."""
    return config.learning_rate * SCHEDULES[config.schedule](step, config)


def _warmup(step: int, config: TrainConfig) -> float:
    return min(1.0, (step + 1) / max(1, config.warmup_steps))


def _progress(step: int, begin: float, end: float) -> float:
    """0 up to `begin`, 1 from `end` on, a straight line between."""
    return min(1.0, max(0.0, step - begin) / max(1.0, end - begin))


def constant(step: int, config: TrainConfig) -> float:
    """The peak, after warm-up. `min_lr_ratio` is ignored."""
    return _warmup(step, config)


def linear(step: int, config: TrainConfig) -> float:
    """A straight line from the peak to `min_lr_ratio`, which it meets as the last step ends."""
    decayed = _progress(step, config.warmup_steps, config.steps)
    return _warmup(step, config) * (1 - (1 - config.min_lr_ratio) * decayed)


def cosine(step: int, config: TrainConfig) -> float:
    """Half a cosine from the peak to `min_lr_ratio` (Loshchilov & Hutter 2017, arXiv 1608.03983, without restarts)."""
    height = (1 + math.cos(math.pi * _progress(step, config.warmup_steps, config.steps))) / 2
    return _warmup(step, config) * (config.min_lr_ratio + (1 - config.min_lr_ratio) * height)


def inverse_sqrt(step: int, config: TrainConfig) -> float:
    """min((s+1)^-0.5, (s+1) * warmup^-1.5) (Vaswani et al. 2017, equation 3), scaled so that its peak is 1.

    `min_lr_ratio` is ignored: the rate does not depend on the number of steps.
    """
    warmup = max(1, config.warmup_steps)
    return min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def warmup_stable_decay(step: int, config: TrainConfig) -> float:
    """The peak until the last fifth of the steps, then down to `min_lr_ratio` as 1 - sqrt (arXiv 2405.18392)."""
    begin = max(config.warmup_steps, config.steps * (1 - COOLDOWN))
    height = 1 - math.sqrt(_progress(step, begin, config.steps))
    return _warmup(step, config) * (config.min_lr_ratio + (1 - config.min_lr_ratio) * height)


SCHEDULES: Mapping[str, Schedule] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "inverse_sqrt": inverse_sqrt,
    "warmup_stable_decay": warmup_stable_decay,
}
