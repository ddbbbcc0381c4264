"""The training loop: a generator of events. Console, logs, samples and checkpoints are its consumers."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from clearhead.config import TrainConfig
from clearhead.errors import ArgumentError, ClearheadError
from clearhead.models import Evaluation
from clearhead.options import has_arguments
from clearhead.training.batches import Batches, batch_function
from clearhead.training.checkpoints import not_finite
from clearhead.training.events import Evaluated, Event, Notice, SaveDue, Stepped, TrainingState
from clearhead.training.loss import Forward, counted_tokens
from clearhead.training.optimizers import Optimizer, build_optimizer
from clearhead.training.processes import Processes
from clearhead.training.schedules import learning_rate
from clearhead.training.sharding import is_sharded, shard_of
from clearhead.training.train_step import TrainStep

DIVERGED = 1.0  # nats above the first loss; a model that learns never gets there
RECENT_LOSSES = 10  # losses in the mean that is compared with it
SKIPS_ALLOWED = 10  # steps in a row without a finite loss and gradient, after which a training gives up


@has_arguments()
def fit(
    model: nn.Module,
    config: TrainConfig,
    batch: Batches,
    *,
    seed: int = 1,
    optimizer: Optimizer | None = None,
    state: TrainingState | None = None,
    evaluate: Callable[[], Evaluation] | None = None,
    body: Forward | None = None,
    steps: Callable[[int], int] | None = None,
) -> Iterator[Event]:
    """Train `model` in place until `config.steps` steps are done, yielding events.

    Between two events the weights, the optimizer and `state` belong together: a consumer may save them, sample from the
    model or stop for good. A step is a pure function of (weights, optimizer, seed, step), so a training continued
    from what was saved is bit for bit the one that was never interrupted. One value per step is awaited from the
    device: whether loss and gradient are finite, before they may touch the weights.

    `SaveDue` is yielded only if weights, optimizer moments, loss and gradient are finite, the gradient is not zero, and
    recent losses are at most `DIVERGED` above the first. The next step computes loss and gradient, so a save is one
    step late.

    Args:
        batch: step, counted from 0 -> the model's inputs and, last, the targets (B, T), -100 where not counted. Or a
            DataLoader of such batches, restarted when exhausted; resume is then not exact. An exception from either
            ends the training between two steps, after a final `SaveDue` if the weights are good.
        seed: with the step, decides the dropout.
        optimizer, state: from a checkpoint; fresh ones by default. `state` is kept up to date in place.
        evaluate: the loss on the held-out text, called with the model in evaluation mode.
        body: replaces `model.body`, e.g. to apply a document mask; of a module that is no `LanguageModel`, so has no
            `head`, the module itself, which gives logits (B, T, V).
        steps: called before each step with the steps done; returns the new total, at least one more. So a time
            budget can shorten or lengthen the training and its schedule. `config.steps` by default.

    Raises:
        ClearheadError: ten steps in a row were not finite, the weights are not, or the memory is too small for a batch.
    """
    if not isinstance(config, TrainConfig):
        raise ArgumentError(f"fit takes a model, a TrainConfig and batches, in this order, not {type(config).__name__}")
    optimizer = optimizer or build_optimizer(model, config)
    batch_of = batch_function(batch)
    loop = _Loop(model, config, optimizer, state or TrainingState(), TrainStep(model, config, body), seed)
    while loop.state.step < loop.config.steps:
        if steps is not None:
            loop.replan(steps(loop.state.step))
        model.train()
        try:
            start_time, tensors = time.perf_counter(), batch_of(loop.state.step)
        except (KeyboardInterrupt, Exception):
            if loop.weights_are_good():
                yield loop.save_due()
            raise
        yield from loop.step(tensors, start_time)
        if evaluate and _is_due(loop.state.step, config.eval_every, loop.config.steps):
            model.eval()
            yield loop.evaluated(evaluate())
    if loop.must_save:
        if not loop.weights_are_good():
            raise loop.failure("the training diverged")
        yield loop.save_due()


class _Loop:
    """The state of the loop between steps, and the methods that advance it."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        optimizer: Optimizer,
        state: TrainingState,
        train_step: TrainStep,
        seed: int,
    ) -> None:
        self.model, self.config, self.optimizer, self.state = model, config, optimizer, state
        self.train_step, self.seed = train_step, seed
        self.best_before = state.best_loss, state.best_step
        self.must_save = False  # a save is due, and waits until the weights are known to be good
        self.save_was_skipped = False  # the last save that was due
        self.has_saved = self.state.step > 0
        self.skipped_in_a_row = 0
        self.first_loss: float | None = None  # the first loss of this process; the training's own is in the state
        self.recent_losses: deque[float] = deque(maxlen=RECENT_LOSSES)  # losses of batches that were learned from
        self.last_good_batch: tuple[Sequence[Tensor], int] | None = None  # the last batch learned from, and its step

    def replan(self, steps: int) -> None:
        """Take so many steps in all; the schedule's rest follows."""
        if steps != self.config.steps:
            self.config = self.config.model_copy(update={"steps": steps})

    def step(self, tensors: Sequence[Tensor], start_time: float) -> Iterator[Event]:
        """Take one step. A pending save of the weights before it comes first, once loss and gradient show them good."""
        state = self.state
        rate, tokens = learning_rate(self.config, state.step), counted_tokens(tensors[-1])
        loss, norm = self._gradient(tensors, state.step, tokens)
        finite = math.isfinite(loss) and math.isfinite(norm)
        is_usable = finite and norm > 0  # saturated weights have a finite loss but a zero gradient
        if is_usable:
            self.last_good_batch = tensors, state.step
            self.recent_losses.append(loss)
            self.first_loss = loss if self.first_loss is None else self.first_loss
            state.first_loss = loss if state.first_loss is None else state.first_loss
        if self.must_save:
            paused = time.perf_counter()
            yield from self._save_or_skip(self._has_not_diverged() if is_usable else self.weights_are_good(), loss)
            start_time += time.perf_counter() - paused
        if finite:
            self.optimizer.step(rate)
        self._advance(tokens, finite=finite)
        if self.train_step.notice:
            yield Notice(self.train_step.notice, state.step)
            self.train_step.notice = None
        yield Stepped(state.step, loss, rate, norm, tokens, time.perf_counter() - start_time, skipped=not finite)
        if self.skipped_in_a_row >= SKIPS_ALLOWED:
            raise self.failure(f"loss or gradient was not finite for {self.skipped_in_a_row} steps in a row")

    def _save_or_skip(self, is_good: bool, loss: float) -> Iterator[Event]:
        """Save good weights. Bad ones are not saved, so they lose the rank of best as well."""
        state = self.state
        if is_good:
            if name := not_finite(self.model, self.optimizer):
                raise self.failure(f"{name} was not finite")
            yield self.save_due()
        else:
            state.best_loss, state.best_step = self.best_before
            if not self.save_was_skipped:
                first = "" if state.first_loss is None else f" (it began at {state.first_loss:.4g})"
                yield Notice(
                    f"the loss is {loss:.4g}{first}: the training is diverging, so no checkpoint is saved", state.step
                )
            self.save_was_skipped = True

    def _has_not_diverged(self) -> bool:
        """Whether the last loss and the mean of the last few are at most DIVERGED above the first one."""
        first = self.state.first_loss
        if first is None or self.first_loss is None:
            return True
        highest = max(first, self.first_loss) + DIVERGED  # a resume that brings the loss down has not diverged
        return max(self.recent_losses[-1], sum(self.recent_losses) / len(self.recent_losses)) <= highest

    def _gradient(self, tensors: Sequence[Tensor], step: int, tokens: int) -> tuple[float, float]:
        """Compute the gradient of a batch, clipped; return the loss and the norm before clipping."""
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        loss = self.train_step.gradient(tensors, tokens=tokens, seed=self.seed, step=step)
        loss_and_norm = clip_gradient(self.model, self.config.max_grad_norm, loss, self.train_step.processes).tolist()
        return loss_and_norm[0], loss_and_norm[1]

    def _advance(self, tokens: int, *, finite: bool) -> None:
        state = self.state
        state.step += 1
        state.tokens += tokens
        state.skipped += not finite
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1
        self.best_before = state.best_loss, state.best_step
        self.must_save |= _is_due(state.step, self.config.save_every, self.config.steps)

    def evaluated(self, measured: Evaluation) -> Evaluated:
        """Record an evaluation; a new best loss schedules a save."""
        state = self.state
        lowest = math.inf if state.best_loss is None else state.best_loss
        best = measured.loss < lowest
        if best:
            state.best_loss, state.best_step = measured.loss, state.step
            self.must_save = True
        return Evaluated(state.step, measured.loss, measured.tokens, best)

    def weights_are_good(self) -> bool:
        """Check the weights without a new batch: recompute loss and gradient on the last good one."""
        if self.last_good_batch is not None:
            tensors, step = self.last_good_batch
            loss, norm = self._gradient(tensors, step, counted_tokens(tensors[-1]))
            if not (math.isfinite(loss) and 0 < norm < math.inf):
                return False
            self.recent_losses.append(loss)
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()  # a step may follow, on a batch that has no gradient
        return self._has_not_diverged() and not_finite(self.model, self.optimizer) is None

    def save_due(self) -> SaveDue:
        """The event that asks for a save now."""
        self.must_save, self.save_was_skipped, self.has_saved = False, False, True
        return SaveDue(replace(self.state), best=self.state.best_step == self.state.step)

    def failure(self, reason: str) -> ClearheadError:
        """The error that ends the training: the reason, what is saved, and how to resume."""
        saved = "what was saved before is good" if self.has_saved else "nothing was saved before"
        return ClearheadError(
            f"{reason}, up to step {self.state.step}; {saved}: "
            f"resume with `train.learning_rate` below {self.config.learning_rate:g}"
        )


def clip_gradient(model: nn.Module, limit: float, loss: Tensor, group: Processes) -> Tensor:
    """Scale the gradient down to norm `limit` where it is longer.

    Returns:
        The sum of the processes' losses, and the norm of the gradient from before, (2,).
    """
    learned = [p for p in model.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm([shard_of(p.grad) for p in learned if p.grad is not None])
    if is_sharded(model):  # each has the norm of its shards
        loss_sum, square = group.sum(torch.stack([loss.double(), norm.double().square()]))
        loss_and_norm = torch.stack([loss_sum, square.sqrt()]).to(norm.dtype)
        norm = loss_and_norm[1]
    else:  # and here all have the norm of the same gradient
        loss_and_norm = group.sum(torch.stack([loss, norm / group.world_size]))
    nn.utils.clip_grads_with_norm_(learned, limit, norm)
    return loss_and_norm


def _is_due(step: int, every: int, steps: int) -> bool:
    return step % every == 0 or step == steps
