"""The training loop: a generator of events. Console, logs, samples and checkpoints are its consumers."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from clearhead.config import TrainConfig
from clearhead.errors import ClearheadError
from clearhead.inference import Evaluation
from clearhead.training.computation import Computation
from clearhead.training.events import Evaluated, Event, Notice, SaveDue, Stepped, TrainingState
from clearhead.training.loss import Forward, counted_tokens
from clearhead.training.optimizers import Optimizer, build_optimizer
from clearhead.training.schedules import learning_rate

SKIPS_ALLOWED = 10  # steps in a row without a finite loss and gradient, after which a training gives up


def fit(
    model: nn.Module,
    config: TrainConfig,
    batch: Callable[[int], Sequence[Tensor]],
    *,
    seed: int,
    optimizer: Optimizer | None = None,
    state: TrainingState | None = None,
    evaluate: Callable[[], Evaluation] | None = None,
    forward: Forward | None = None,
) -> Iterator[Event]:
    """Train `model` in place until `config.steps` steps are done, telling what happens.

    Between two events the weights, the optimizer and `state` belong together: a consumer may save them, sample from the
    model or stop for good. A step is a pure function of (weights, optimizer, seed, step), so a training continued
    from what was saved is bit for bit the one that was never interrupted. One value per step is awaited from the
    device: whether loss and gradient are finite, before they may touch the weights.

    Args:
        batch: step, counted from 0 -> the model's inputs and, last, the targets (B, T), -100 where not counted. What
            it raises ends the training between two steps, with all of the last one told: the place to interrupt.
        seed: with the step, decides the dropout.
        optimizer, state: from a checkpoint; fresh ones by default. `state` is kept up to date in place.
        evaluate: the loss on the held-out text, called with the model in evaluation mode.
        forward: the inputs -> logits (B, T, V); the model itself by default.

    Raises:
        ClearheadError: ten steps in a row were not finite, or the memory is too small for a batch.
    """
    optimizer = optimizer or build_optimizer(model, config)
    state = state or TrainingState()
    computation = Computation(model, config, forward)
    while state.step < config.steps:
        began = time.perf_counter()
        model.train()
        rate = learning_rate(config, state.step)
        tensors = batch(state.step)
        tokens = counted_tokens(tensors[-1])
        model.zero_grad(set_to_none=True)
        device_loss = computation.gradient(tensors, tokens=tokens, seed=seed, step=state.step)
        loss, norm = torch.stack([device_loss, clip_gradient(model, config.clip)]).tolist()
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            optimizer.step(rate)
        _advance(state, tokens, finite=finite)
        if computation.notice:
            yield Notice(state.step, computation.notice)
            computation.notice = None
        yield Stepped(state.step, loss, rate, norm, tokens, time.perf_counter() - began, skipped=not finite)
        if state.skipped_in_a_row >= SKIPS_ALLOWED:
            raise ClearheadError(_gave_up(state, config))
        if evaluate and _is_due(state.step, config.eval_every, config.steps):
            model.eval()
            yield _evaluated(state, evaluate())
        best = state.best_step == state.step
        if best or _is_due(state.step, config.save_every, config.steps):
            yield SaveDue(replace(state), best)


def clip_gradient(model: nn.Module, limit: float) -> Tensor:
    """Scale the gradient down to norm `limit` where it is longer; returns its norm from before, ()."""
    return nn.utils.clip_grad_norm_(model.parameters(), limit)


def _advance(state: TrainingState, tokens: int, *, finite: bool) -> None:
    state.step += 1
    state.tokens += tokens
    state.skipped += not finite
    state.skipped_in_a_row = 0 if finite else state.skipped_in_a_row + 1


def _evaluated(state: TrainingState, measured: Evaluation) -> Evaluated:
    lowest = math.inf if state.best_loss is None else state.best_loss
    best = measured.loss < lowest
    if best:
        state.best_loss, state.best_step = measured.loss, state.step
    return Evaluated(state.step, measured.loss, measured.tokens, best)


def _is_due(step: int, every: int, steps: int) -> bool:
    return step % every == 0 or step == steps


def _gave_up(state: TrainingState, config: TrainConfig) -> str:
    return (
        f"loss or gradient was not finite for {state.skipped_in_a_row} steps in a row, up to step {state.step}; "
        f"the last checkpoint is good: continue from it with a --train.learning_rate below {config.learning_rate:g}"
    )
