"""The gradient of one step: in the precision that the processor has, compiled where that pays, eager where it fails."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from clearhead.allocator import give_back_freed
from clearhead.config import TrainConfig
from clearhead.errors import ClearheadError
from clearhead.models import LanguageModel
from clearhead.options import option
from clearhead.parts import Stack
from clearhead.training.loss import Forward, LossFunction, Smoothing, backward, make_loss_fn
from clearhead.training.lost_processes import naming_the_lost
from clearhead.training.precision import autocast, resolve_precision
from clearhead.training.processes import Processes
from clearhead.training.randomness import randomness_of
from clearhead.training.sharding import is_sharded, unreduced


class TrainStep:
    """Runs a model forward and backward. `notice` holds a sentence if compiling failed and eager took over.

    Processes that share a training each take their rows of the batch, and have the same gradient afterwards.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, body: Forward | None = None) -> None:
        self.model = model
        self.config = config
        self.device = next(model.parameters()).device
        self.precision = resolve_precision(config, self.device)
        self.notice: str | None = None
        smoothing = Smoothing(config.label_smoothing, config.smoothing_over)
        for stack in (module for module in model.modules() if isinstance(module, Stack)):
            stack.recompute = config.recompute == "blocks"
        head, own_body = (model.head, model.body) if isinstance(model, LanguageModel) else (None, model)
        loss_fn = make_loss_fn(body or own_body, smoothing, head=head, parameters=self._learned)
        if config.recompute == "blocks" and self.device.type == "cpu":
            give_back_freed()
        self._eager_loss_fn: LossFunction = self._in_precision(loss_fn)
        compiles = config.compile == "on" or (config.compile == "auto" and self.device.type == "cuda")
        compiles &= not is_sharded(model)
        self._loss_fn: LossFunction = torch.compile(self._eager_loss_fn) if compiles else self._eager_loss_fn
        self._no_sync: Callable[[], AbstractContextManager[object]] = nullcontext
        self.processes = Processes.joined()
        if is_sharded(model):
            self._no_sync = partial(unreduced, model)
        elif self.processes.world_size > 1:
            with naming_the_lost():
                replica = DistributedDataParallel(_Replica(model, self._loss_fn), gradient_as_bucket_view=True)
            self._loss_fn = self._eager_loss_fn = replica
            self._no_sync = replica.no_sync

    def gradient(self, batch: Sequence[Tensor], *, tokens: int, seed: int, step: int) -> Tensor:
        """Add the gradient of the batch's loss, which is returned, to the parameters; a pure function of its arguments.

        Raises:
            ClearheadError: the device's memory is too small for the batch, or another process was lost.
        """
        with explain_out_of_memory(self.config), naming_the_lost():
            on_device = [to_device(tensor, self.device) for tensor in self.processes.rows(batch)]
            try:
                return self._run(on_device, tokens=tokens, seed=seed, step=step)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                if self._loss_fn is self._eager_loss_fn:
                    raise
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._loss_fn = self._eager_loss_fn
            self.notice = (
                f"torch.compile failed ({reason}), so the model runs uncompiled; "
                f"{option('train.compile', 'off')} silences this"
            )
            self.model.zero_grad(set_to_none=True)
            return self._run(on_device, tokens=tokens, seed=seed, step=step)

    def _run(self, batch: Sequence[Tensor], *, tokens: int, seed: int, step: int) -> Tensor:
        with randomness_of(seed, step, self.device, rank=self.processes.rank):
            return backward(
                self._loss_fn,
                batch,
                tokens=tokens,
                parts=self.config.micro_batches,
                world_size=self.processes.world_size,
                no_sync=self._no_sync,
            )

    def _learned(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def _in_precision(self, loss_fn: LossFunction) -> LossFunction:
        def computed(*batch: Tensor) -> tuple[Tensor, Tensor]:
            with autocast(self.device, self.precision):
                return loss_fn(*batch)

        return computed


class _Replica(nn.Module):
    """A model with its loss, as the module that DDP wraps."""

    def __init__(self, model: nn.Module, loss_fn: LossFunction) -> None:
        super().__init__()
        self.model, self.loss_fn = model, loss_fn

    def forward(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """A batch, its targets last -> the sums of its losses, (), ()."""
        return self.loss_fn(*batch)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to a device; to a GPU without waiting, from pinned memory."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is out-of-memory, on the device or the CPU, whose allocator has no error class of its own."""
    messages = ("can't allocate memory", "not enough memory", "std::bad_alloc")  # "not enough" on Windows
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(message in str(error) for message in messages)


@contextmanager
def explain_out_of_memory(config: TrainConfig) -> Iterator[None]:
    """Turn out-of-memory errors into a sentence that names the option to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        parts = 2 * config.micro_batches
        raise ClearheadError(
            f"the memory is too small for a batch of {config.batch_size} sequences in {config.micro_batches} parts; "
            f"{option('train.micro_batches', parts)} needs about half and gives the same gradient, or lower "
            "`train.batch_size`"
        ) from error
