"""The processes that share a training: which one this is, and what they settle with each other.

torchrun starts them and says in the environment who is who; torch.distributed carries the numbers. A process that is
alone is rank 0 of 1, and asks nobody.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from clearhead.data import IGNORED
from clearhead.training.lost_processes import (
    TIMEOUT,
    answering,
    beating,
    naming_the_lost,
    ready,
    speaker,
    wait_for_first,
)

_is_alone = ContextVar("_is_alone", default=False)


@dataclass(frozen=True)
class Processes:
    """This process's rank among `world_size`. All call the methods, or wait, but for `rows`, `speaker`, `answering`."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def joined(cls) -> "Processes":
        """Of the group that this process is in; alone where it is in none, or inside `alone`."""
        if _is_alone.get() or not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_first(self) -> bool:
        """Whether this process plans, prints and writes for all."""
        return self.rank == 0

    def rows(self, batch: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """This process's rows of a batch that all of them have built, (B, ...) -> (B / world_size, ...) rounded up.

        All have as many, and meet in the same passes: where some lack one, it is the batch's last without its targets.
        """
        if self.world_size == 1:
            return tuple(batch)
        rows, (*inputs, targets) = torch.arange(len(batch[-1])).tensor_split(self.world_size), batch
        own, count = rows[self.rank], len(rows[0])
        filled = torch.cat((own, own.new_full((count - len(own),), len(targets) - 1)))
        own_targets = targets[filled]
        own_targets[len(own) :] = IGNORED
        return (*(tensor[filled] for tensor in inputs), own_targets)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of everybody's tensor, the same bits everywhere."""
        if self.world_size > 1:
            with naming_the_lost():
                dist.all_reduce(tensor)
        return tensor

    def divide(self, function: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:
        """The function of a batch, (N, ...) -> (N, ...), of which each process computes its share for all."""
        if self.world_size == 1:
            return function(batch)
        count = -(-len(batch) // self.world_size)
        own = batch[self.rank * count : (self.rank + 1) * count]
        share = batch.new_zeros(count, *batch.shape[1:])
        if len(own):
            share[: len(own)] = function(own)
        results = batch.new_empty(self.world_size * count, *batch.shape[1:])
        with naming_the_lost():
            dist.all_gather(list(results.chunk(self.world_size)), share)
        return results[: len(batch)]

    def agree(self, *numbers: int) -> tuple[int, ...]:
        """The largest that anybody says of each number; who has no say in one says 0."""
        if self.world_size == 1:
            return numbers
        largest = torch.tensor(numbers, dtype=torch.int64, device=_device())
        with naming_the_lost():
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return tuple(largest.tolist())

    def speaker(self) -> int:
        """The rank that tells why the training ends: of those that ask, the first."""
        return speaker() if self.world_size > 1 else self.rank

    def answering(self) -> AbstractContextManager[None]:
        """In here who waits for this process in vain learns where it is."""
        return answering() if self.world_size > 1 else nullcontext()

    def at_work(self) -> AbstractContextManager[None]:
        """In here rank 0 may take any time until the next `from_first`; the others know that it is alive."""
        return beating() if self.world_size > 1 else nullcontext()

    def from_first(self, text: str | None) -> str:
        """What rank 0 says; the others give None, and wait for it as long as it is `at_work`."""
        if self.world_size == 1:
            assert text is not None
            return text
        if not self.is_first:
            wait_for_first()
        content = b"" if text is None else text.encode()
        with ready() if self.is_first else nullcontext():
            (size,) = self.agree(len(content))
        data = torch.zeros(size, dtype=torch.uint8, device=_device())
        if content:
            data.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        with naming_the_lost():
            dist.broadcast(data, src=0)
        return bytes(data.tolist()).decode()


@contextmanager
def alone() -> Iterator[None]:
    """What this process trains in here is its own: the others take no part, so nobody waits for them."""
    token = _is_alone.set(True)
    try:
        yield
    finally:
        _is_alone.reset(token)


@contextmanager
def join_processes() -> Iterator[Processes]:
    """The processes that torchrun started with this one, which leave each other at the end; else this one alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield Processes.joined()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with naming_the_lost():
        dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield Processes.joined()
    finally:
        dist.destroy_process_group()


def _device() -> str:
    """Where what is settled has to lie: nccl knows no other place than its GPU."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"
