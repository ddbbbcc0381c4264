"""What this machine has: the device, its threads, and how fast it trains a given model."""

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from clearhead.config import RunConfig
from clearhead.errors import ClearheadError, UsageError
from clearhead.models import build_model
from clearhead.training import Stepped, fit, is_out_of_memory
from clearhead.workflows.tasks import Task

PROBE_STEPS = 40  # at most
PROBE_SECONDS = 1.0  # and three steps at least


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


def seconds_per_step(config: RunConfig, task: Task) -> float:
    """The median time of a training step, measured for a second on a throw-away model."""
    model = build_model(config.model, seed=0).to(choose_device(config.train.device))
    train = config.train.model_copy(update={"steps": PROBE_STEPS})
    began, seconds = time.perf_counter(), []
    with threads(train.threads):
        for event in fit(model, train, task.batches(config), seed=0, forward=task.forward(model)):
            if isinstance(event, Stepped):
                seconds.append(event.seconds)
                if len(seconds) > 2 and time.perf_counter() - began > PROBE_SECONDS:
                    break
    return statistics.median(seconds[1:] or seconds)  # the first step warms up
