"""The processes that share a training: which one this is, and what they settle with each other.

torchrun starts them and says in the environment who is who; torch.distributed carries the numbers. A process that is
alone is rank 0 of 1, and asks nobody.

torchrun keeps one store for all its starts, and what processes that have died wrote into it is still there: their
addresses, that they failed. So those of one start first agree on a part of the store that is theirs alone.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from clearhead.data import IGNORED
from clearhead.errors import SilentExit, UsageError
from clearhead.training.lost_processes import (
    POLL,
    TIMEOUT,
    ProcessLostError,
    answering,
    beating,
    group_store,
    naming_the_lost,
    ready,
    speaker,
    wait_for_first,
)

LAUNCHER = "clearhead/launcher"  # in the part of the store; whoever wrote it is there

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
    """The processes that torchrun started with this one, which leave each other at the end; else this one alone.

    Raises:
        UsageError: they are more than the machine has GPUs.
        ProcessLostError: one of them did not come, or ended while they met.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield Processes.joined()
        return
    if torch.cuda.is_available():
        _take_a_gpu()
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, world_size = next(rendezvous("env://", timeout=TIMEOUT))
        part = meet(store, rank, world_size)
        dist.init_process_group(backend, timeout=TIMEOUT, store=part, rank=rank, world_size=world_size)
    except RuntimeError as error:  # of the store, or of gloo, which no longer reaches a process that was there
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ProcessLostError(f"the processes of this training did not all meet: {reason}") from error
    try:
        yield Processes.joined()
    finally:
        dist.destroy_process_group()


def meet(store: Store, rank: int, world_size: int) -> Store:
    """A part of the store that only the processes of this start know, once all of them are there.

    Each draws a ticket, which nobody draws twice. Rank 0 answers every ticket that it reads, also one that a dead
    process left behind, until all who live have said that they read their answer: the ticket of rank 0.

    Raises:
        ProcessLostError: somebody did not come.
    """
    ticket = str(store.add("clearhead/tickets", 1))
    if rank > 0:
        store.set(f"clearhead/ticket/{rank}", ticket)
        answer = f"clearhead/answer/{ticket}"
        for _ in _until(lambda: [] if store.check([answer]) else [0]):
            pass
        ticket = store.get(answer).decode()
    part = PrefixStore(f"clearhead/{ticket}", store)
    part.set(f"{LAUNCHER}/{rank}", own_launcher())
    others = range(1, world_size) if rank == 0 else ()
    for missing in _until(lambda: [other for other in others if not part.check([f"{LAUNCHER}/{other}"])]):
        for other in missing:
            if store.check([f"clearhead/ticket/{other}"]):
                store.set(f"clearhead/answer/{store.get(f'clearhead/ticket/{other}').decode()}", ticket)
    return part


def _until(missing: Callable[[], Sequence[int]]) -> Iterator[Sequence[int]]:
    """The ranks that are missing, again and again until none is; in between a signal is heard.

    Raises:
        ProcessLostError: somebody did not come.
    """
    end = time.monotonic() + TIMEOUT.total_seconds()
    while ranks := missing():
        if time.monotonic() > end:
            raise ProcessLostError(f"rank {', '.join(map(str, ranks))} of this training did not come")
        yield ranks
        time.sleep(POLL / 10)


def launchers() -> set[str]:
    """What started the processes of this training: one on each machine, the same at every start that it makes."""
    store, world_size = (group_store(), dist.get_world_size()) if dist.is_initialized() else (None, 1)
    if store is None or not store.check([f"{LAUNCHER}/0"]):  # alone, or the processes met elsewhere
        return {own_launcher()}
    return {store.get(f"{LAUNCHER}/{rank}").decode() for rank in range(world_size)}


def own_launcher() -> str:
    """What started this process: the machine, its number there, and, where the system says it, when it began.

    A container has the same few numbers each time.
    """
    number, began = os.getppid(), ""
    with suppress(OSError, IndexError):
        began = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return f"{platform.node()}/{number}/{began}"


def _take_a_gpu() -> None:
    """Each process has a GPU of its own.

    Raises:
        UsageError: there are too few; the first process of the machine tells it.
    """
    rank, local_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count()
    if local_size > gpus:
        error = UsageError(
            f"{local_size} processes are more than this machine has GPUs, {gpus}; start one for each, or let them "
            "train on the CPU: set CUDA_VISIBLE_DEVICES to nothing"
        )
        raise error if rank == 0 else SilentExit(error.exit_code, str(error))
    torch.cuda.set_device(rank)


def _device() -> str:
    """Where what is settled has to lie: nccl knows no other place than its GPU."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"
