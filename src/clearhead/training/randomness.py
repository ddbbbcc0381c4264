"""Dropout's randomness as a pure function of (seed, step, rank), so that nothing about it needs saving."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_DROPOUT = 0x64726F70  # "drop": keeps these draws apart from other uses of the same seed


@contextmanager
def randomness_of(seed: int, step: int, device: torch.device, *, rank: int = 0) -> Iterator[None]:
    """Seed torch's global generators from (seed, step, rank) inside the `with`; restore their state after it.

    Dropout takes no generator argument, so it needs the global ones. Each process of a training drops by draws of its
    own, or rows of the same batch would lose the same units.
    """
    key = (_DROPOUT, step, rank) if rank else (_DROPOUT, step)  # rank 0 draws what a process that is alone draws
    number = int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0])
    on_cpu = device.type == "cpu"
    with torch.random.fork_rng(devices=[] if on_cpu else [device], device_type=device.type):
        torch.default_generator.manual_seed(number)
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            torch.cuda.default_generators[index].manual_seed(number)
        elif not on_cpu:
            torch.get_device_module(device).manual_seed(number)
        yield
