"""How a process tells that others are alive, hang, or have ended, and says so in a sentence.

A process that works alone for long beats in the store in which the group has met. One that hangs does not answer a roll
call there.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from clearhead.errors import ClearheadError

TIMEOUT = timedelta(minutes=10)  # that a process waits for the others; a checkpoint may take minutes
POLL = 0.2  # seconds between two looks into the store
GRACE = 1.0  # seconds in which a process that waited too long tells those whose connections it closed
CLOSED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")  # gloo's own words
TIMED_OUT = "Timed out waiting"
BEATS, READY, FAILED, HANGS, WAITING, SPEAKER = (  # in the store
    f"clearhead/{key}" for key in ("beats", "ready", "failed", "hangs", "waiting", "speaker")
)


class ProcessLostError(ClearheadError):
    """Another process of the training ended, or says nothing; it has told why, or was killed.

    Attributes:
        speaker: the rank of the process that tells it, once for all.
    """

    def __init__(self, message: str, *, speaker: int = 0) -> None:
        super().__init__(message)
        self.speaker = speaker


@contextmanager
def naming_the_lost() -> Iterator[None]:
    """Turn a lost connection into a sentence: a process that failed has said why, one that hangs is named."""
    try:
        yield
    except RuntimeError as error:
        timed_out = TIMED_OUT in str(error)
        if not timed_out and not any(phrase in str(error) for phrase in CLOSED):
            raise
        raise _lost(timed_out=timed_out) from error


def speaker() -> int:
    """The rank that tells why the training ends, once for all: the first that asks this."""
    try:
        return int(group_store().compare_set(SPEAKER, "", str(dist.get_rank())))
    except dist.DistError:  # the store went with rank 0, which kept it
        return 1


@contextmanager
def beating() -> Iterator[None]:
    """Tell the others from a thread that this process is alive, whatever it does in here; at last, that it failed."""
    store = group_store()
    try:
        with _repeating((TIMEOUT / 60).total_seconds(), lambda: store.add(BEATS, 1)):
            yield
    except BaseException:
        with suppress(dist.DistError):
            store.set(FAILED, "")
        raise


@contextmanager
def answering() -> Iterator[None]:
    """Answer from a thread the roll call of a process that waited too long, whatever this one waits for in here."""
    store, group = group_store(), dist.group.WORLD

    def answer() -> None:
        if store.check([HANGS]):
            _answer(store, group)

    with _repeating((TIMEOUT / 120).total_seconds(), answer):
        yield


@contextmanager
def _repeating(seconds: float, function: Callable[[], object]) -> Iterator[None]:
    """A thread calls the function every so many seconds, as long as the store is there."""
    ended = threading.Event()

    def repeat() -> None:
        with suppress(dist.DistError):  # the store went with the others
            while not ended.wait(seconds):
                function()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(POLL)


@contextmanager
def ready() -> Iterator[None]:
    """In here the first process meets those that `wait_for_first`."""
    group_store().set(READY, "")
    yield
    group_store().delete_key(READY)


def wait_for_first() -> None:
    """Until rank 0 is `ready`, for as long as it beats.

    Raises:
        ProcessLostError: it failed, ended, or there was no beat for `TIMEOUT`.
    """
    try:
        store, beats, last = group_store(), -1, time.monotonic()
        while not store.check([READY]):
            if store.check([FAILED]):
                raise ProcessLostError("the first process of this training failed")
            if (count := store.add(BEATS, 0)) != beats:  # counted, not timed: clocks of machines differ
                beats, last = count, time.monotonic()
            if time.monotonic() - last > TIMEOUT.total_seconds():
                raise _hang([0])
            time.sleep(POLL)
    except dist.DistError as error:  # where rank 0 keeps the store itself
        raise ProcessLostError("the first process of this training ended", speaker=1) from error


def _lost(*, timed_out: bool) -> ProcessLostError:
    """That a process ended; or hangs, which all learn from the first of them that waited too long.

    gloo closes the connections of that process, so the others see them closed before their own time is over.
    """
    with suppress(dist.DistError):
        if timed_out:
            group_store().set(HANGS, "")
        if timed_out or _is_hanging():
            return _hang(_silent_ranks())
    return ProcessLostError(
        "another process of this training ended; if it wrote no message, the system killed it", speaker=speaker()
    )


def _is_hanging() -> bool:
    """Whether a process has waited too long, rather than ended; one that failed has said so before it ended."""
    store, end = group_store(), time.monotonic() + GRACE
    while not store.check([HANGS]):
        if store.check([SPEAKER]) or time.monotonic() > end:
            return False
        time.sleep(POLL)
    return True


def _silent_ranks() -> list[int]:
    """Those that do not answer a roll call, or have not come to what this process waited for."""
    store, end = group_store(), time.monotonic() + (TIMEOUT / 20).total_seconds()
    count = _answer(store, dist.group.WORLD)

    def is_silent(rank: int) -> bool:
        key = f"{WAITING}/{rank}"
        return not store.check([key]) or int(store.get(key)) < count

    silent = list(range(dist.get_world_size()))
    while silent and time.monotonic() < end:
        silent = [rank for rank in silent if is_silent(rank)]
        time.sleep(POLL)
    return silent


def _answer(store: Store, group: dist.ProcessGroup | None) -> int:
    """Say how many collectives this process has entered: who waits in vain has entered more than who hangs."""
    assert group is not None
    count: int = group._get_sequence_number_for_group()  # type: ignore[attr-defined]  # torch does not declare it
    store.set(f"{WAITING}/{group.rank()}", str(count))
    return count


def _hang(ranks: Sequence[int]) -> ProcessLostError:
    who = f"rank {', '.join(map(str, ranks))}" if ranks else "another process"
    return ProcessLostError(
        f"{who} of this training hangs: nothing came from it for {TIMEOUT.total_seconds() / 60:.3g} minutes",
        speaker=speaker(),
    )


def group_store() -> Store:
    """Where the processes of the group have met; it outlasts a collective that fails."""
    return dist.distributed_c10d._get_default_store()
