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
from clearhead.training.checkpoints import not_finite
from clearhead.training.computation import Computation
from clearhead.training.events import Evaluated, Event, Notice, SaveDue, Stepped, TrainingState
from clearhead.training.loss import Forward, counted_tokens
from clearhead.training.optimizers import Optimizer, build_optimizer
from clearhead.training.schedules import learning_rate

FAR = 10  # times 1 + the first loss: weights with a higher one have diverged, and who starts from them gets nowhere
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

    `SaveDue` comes only for good weights: they and the optimizer's moments are finite, so are the loss and the gradient
    that they give, and the loss is not far above the first. The next step computes these, so a save waits for it.

    Args:
        batch: step, counted from 0 -> the model's inputs and, last, the targets (B, T), -100 where not counted. What
            it raises ends the training between two steps, with all of the last one told and a last `SaveDue`: the
            place to interrupt.
        seed: with the step, decides the dropout.
        optimizer, state: from a checkpoint; fresh ones by default. `state` is kept up to date in place.
        evaluate: the loss on the held-out text, called with the model in evaluation mode.
        forward: the inputs -> logits (B, T, V); the model itself by default.

    Raises:
        ClearheadError: ten steps in a row were not finite, the weights are not, or the memory is too small for a batch.
    """
    optimizer = optimizer or build_optimizer(model, config)
    loop = _Loop(model, config, optimizer, state or TrainingState(), Computation(model, config, forward), seed)
    while loop.state.step < config.steps:
        model.train()
        try:
            began, tensors = time.perf_counter(), batch(loop.state.step)
        except (KeyboardInterrupt, Exception):
            if loop.repeats_well():
                yield loop.save_due()
            raise
        yield from loop.step(tensors, began)
        if evaluate and _is_due(loop.state.step, config.eval_every, config.steps):
            model.eval()
            yield loop.evaluated(evaluate())
    if loop.must_save:
        if not loop.repeats_well():
            raise loop.gave_up("the training diverged")
        yield loop.save_due()


class _Loop:
    """What a training remembers from one step to the next, and does with it."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        optimizer: Optimizer,
        state: TrainingState,
        computation: Computation,
        seed: int,
    ) -> None:
        self.model, self.config, self.optimizer, self.state = model, config, optimizer, state
        self.computation, self.seed = computation, seed
        self.best_before = state.best_loss, state.best_step
        self.must_save = False  # a save is due, and waits until the weights have shown that they are good
        self.leaves_out = False  # the last one that was due was left out
        self.skipped_in_a_row = 0
        self.last: tuple[Sequence[Tensor], int] | None = None

    def step(self, tensors: Sequence[Tensor], began: float) -> Iterator[Event]:
        """One step; on the way, once these are known to be good, the save of the weights from before it."""
        state = self.state
        rate, tokens = learning_rate(self.config, state.step), counted_tokens(tensors[-1])
        self.last = tensors, state.step
        loss, norm = self._gradient(tensors, state.step, tokens)
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite and state.first_loss is None:
            state.first_loss = loss
        if self.must_save:
            paused = time.perf_counter()
            yield from self._save_or_leave_out(loss, norm)
            began += time.perf_counter() - paused
        if finite:
            self.optimizer.step(rate)
        self._advance(tokens, finite=finite)
        if self.computation.notice:
            yield Notice(state.step, self.computation.notice)
            self.computation.notice = None
        yield Stepped(state.step, loss, rate, norm, tokens, time.perf_counter() - began, skipped=not finite)
        if self.skipped_in_a_row >= SKIPS_ALLOWED:
            raise self.gave_up(f"loss or gradient was not finite for {self.skipped_in_a_row} steps in a row")

    def _save_or_leave_out(self, loss: float, norm: float) -> Iterator[Event]:
        """The save of weights that are good; of others there is no checkpoint, so they are not the best ones either."""
        state = self.state
        if self._is_good(loss, norm):
            if name := not_finite(self.model, self.optimizer):
                raise self.gave_up(f"{name} was not finite")
            yield self.save_due()
        else:
            state.best_loss, state.best_step = self.best_before
            if not self.leaves_out:
                first = "" if state.first_loss is None else f" and was {state.first_loss:.4g} at first"
                yield Notice(state.step, f"nothing is saved while the loss is {loss:.4g}{first}: the training diverges")
            self.leaves_out = True

    def _is_good(self, loss: float, norm: float) -> bool:
        """Whether weights that give this loss and this norm of the gradient are worth a checkpoint."""
        first = self.state.first_loss
        return math.isfinite(norm) and loss <= (math.inf if first is None else FAR * (1 + first)) and loss < math.inf

    def _gradient(self, tensors: Sequence[Tensor], step: int, tokens: int) -> tuple[float, float]:
        """The loss of a batch and the norm of its gradient, which the parameters then have."""
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        loss = self.computation.gradient(tensors, tokens=tokens, seed=self.seed, step=step)
        loss_and_norm = torch.stack([loss, clip_gradient(self.model, self.config.clip)]).tolist()
        return loss_and_norm[0], loss_and_norm[1]

    def _advance(self, tokens: int, *, finite: bool) -> None:
        state = self.state
        state.step += 1
        state.tokens += tokens
        state.skipped += not finite
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1
        self.best_before = state.best_loss, state.best_step
        self.must_save = _is_due(state.step, self.config.save_every, self.config.steps)

    def evaluated(self, measured: Evaluation) -> Evaluated:
        """The best weights so far are saved as well."""
        state = self.state
        lowest = math.inf if state.best_loss is None else state.best_loss
        best = measured.loss < lowest
        if best:
            state.best_loss, state.best_step = measured.loss, state.step
            self.must_save = True
        return Evaluated(state.step, measured.loss, measured.tokens, best)

    def repeats_well(self) -> bool:
        """Whether the weights are good, where no next step will tell: by the last batch once more, if there was one."""
        if self.last is None:
            return True
        tensors, step = self.last
        good = self._is_good(*self._gradient(tensors, step, counted_tokens(tensors[-1])))
        return good and not_finite(self.model, self.optimizer) is None

    def save_due(self) -> SaveDue:
        """The save of now."""
        self.must_save = self.leaves_out = False
        return SaveDue(replace(self.state), best=self.state.best_step == self.state.step)

    def gave_up(self, reason: str) -> ClearheadError:
        """Why the training ends, and how it goes on."""
        return ClearheadError(
            f"{reason}, up to step {self.state.step}; what was saved before is good: "
            f"resume with a --train.learning_rate below {self.config.learning_rate:g}"
        )


def clip_gradient(model: nn.Module, limit: float) -> Tensor:
    """Scale the gradient down to norm `limit` where it is longer; returns its norm from before, ()."""
    return nn.utils.clip_grad_norm_(model.parameters(), limit)


def _is_due(step: int, every: int, steps: int) -> bool:
    return step % every == 0 or step == steps
