"""What this machine has: the device, its threads, and how fast it trains a given model."""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from clearhead.config import RunConfig
from clearhead.errors import ClearheadError, UsageError
from clearhead.models import build_model
from clearhead.training import Stepped, alone, fit, is_out_of_memory, resolve_precision
from clearhead.workflows.tasks import Task

PROBE_STEPS = 40  # at most
PROBE_SECONDS = 1.0  # and three steps at least
PRODUCT_SIDE = 1024


def choose_device(device: str) -> torch.device:
    """The device that the option names; 'auto' is a CUDA device if there is one, else the CPU.

    MPS is used when it is asked for: it has given wrong numbers without an error.

    Raises:
        UsageError: the device is not there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.zeros(1, device=device).cpu().new_empty(0, device=device).device  # "meta" cannot come back
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UsageError(f"this machine has no device '{device}' to compute on; choose auto or cpu") from None


def memory(device: torch.device) -> int | None:
    """The bytes of the device's memory, or None."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return None


@contextmanager
def enough_memory(advice: str) -> Iterator[None]:
    """Out of memory as a sentence that ends with advice.

    Raises:
        ClearheadError: the memory was too small.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ClearheadError(f"the memory is too small for this; {advice}") from error


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Compute with this many processor threads, or with as many as torch chose; leaves the number as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds_per_step(config: RunConfig, task: Task, patience: float = math.inf) -> float:
    """The median time of a training step, measured for a second on a throw-away model, by this process alone.

    With a first step that takes longer than `patience` seconds, that one's time.
    """
    model = build_model(config.model, seed=0).to(choose_device(config.train.device))
    train = config.train.model_copy(update={"steps": PROBE_STEPS})
    start_time, seconds = time.perf_counter(), []
    with threads(train.threads), alone():
        for event in fit(model, train, task.batches(config), seed=0, body=task.body(model)):
            if isinstance(event, Stepped):
                seconds.append(event.seconds)
                taken = time.perf_counter() - start_time
                if taken > patience or (len(seconds) > 2 and taken > PROBE_SECONDS):
                    break
    return statistics.median(seconds[1:] or seconds)  # the first step warms up


def operations_per_second(config: RunConfig) -> float:
    """Floating-point operations per second of a product of two square matrices, in the training's precision.

    No training reaches it, so it bounds the time of a step from below without taking one.
    """
    device = choose_device(config.train.device)
    precision = resolve_precision(config.train, device)
    matrix = torch.ones(PRODUCT_SIDE, PRODUCT_SIDE, dtype=precision, device=device)
    with threads(config.train.threads):
        seconds = min(_timed(lambda: (matrix @ matrix)[0, 0].item()) for _ in range(5))  # item waits for a GPU
    return 2 * PRODUCT_SIDE**3 / seconds


def _timed(work: Callable[[], object]) -> float:
    start_time = time.perf_counter()
    work()
    return time.perf_counter() - start_time
