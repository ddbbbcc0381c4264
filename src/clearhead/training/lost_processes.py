"""How a process tells that others are alive, hang, or have ended, and says so in a sentence.

A process that works alone for long beats in the store in which the group has met. One that hangs does not answer a roll
call there.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from clearhead.errors import ClearheadError

TIMEOUT = timedelta(minutes=10)  # that a process waits for the others; a checkpoint may take minutes
POLL = 0.2  # seconds between two looks into the store
CLOSED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")  # gloo's own words
TIMED_OUT = "Timed out waiting"
BEATS, READY, FAILED, WAITING = (f"clearhead/{key}" for key in ("beats", "ready", "failed", "waiting"))  # in the store


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
        if TIMED_OUT in str(error):
            raise _hang(_silent_ranks()) from error
        if not any(phrase in str(error) for phrase in CLOSED):
            raise
        raise ProcessLostError(
            "another process of this training ended; if it wrote no message, the system killed it"
        ) from error


@contextmanager
def beating() -> Iterator[None]:
    """Tell the others from a thread that this process is alive, whatever it does in here; at last, that it failed."""
    store, ended = _store(), threading.Event()

    def beat() -> None:
        with suppress(dist.DistError):  # the store went with the others
            while not ended.wait((TIMEOUT / 60).total_seconds()):
                store.add(BEATS, 1)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        with suppress(dist.DistError):
            store.set(FAILED, "")
        raise
    finally:
        ended.set()
        thread.join(POLL)


@contextmanager
def ready() -> Iterator[None]:
    """In here the first process meets those that `wait_for_first`."""
    _store().set(READY, "")
    yield
    _store().delete_key(READY)


def wait_for_first() -> None:
    """Until rank 0 is `ready`, for as long as it beats.

    Raises:
        ProcessLostError: it failed, ended, or there was no beat for `TIMEOUT`.
    """
    try:
        store, beats, last = _store(), -1, time.monotonic()
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


def _silent_ranks() -> list[int]:
    """Those that do not answer a roll call of all that wait for them; none where it cannot be held."""
    silent: list[int] = []
    with suppress(dist.DistError):
        store, end = _store(), time.monotonic() + (TIMEOUT / 20).total_seconds()
        store.set(f"{WAITING}/{dist.get_rank()}", "")
        while time.monotonic() < end:
            silent = [rank for rank in range(dist.get_world_size()) if not store.check([f"{WAITING}/{rank}"])]
            time.sleep(POLL)
    return silent


def _hang(ranks: Sequence[int]) -> ProcessLostError:
    who = f"rank {', '.join(map(str, ranks))}" if ranks else "another process"
    return ProcessLostError(
        f"{who} of this training hangs: nothing came from it for {TIMEOUT.total_seconds() / 60:.3g} minutes",
        speaker=min(set(range(len(ranks) + 1)) - set(ranks)),  # the first that does not hang itself
    )


def _store() -> Store:
    """Where the processes of the group have met; it outlasts a collective that fails."""
    return dist.distributed_c10d._get_default_store()
