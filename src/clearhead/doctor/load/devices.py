"""Where a model is examined."""

import re

import torch

from clearhead.errors import DataError, UsageError


def find_device(name: str) -> torch.device:
    """The device of that name.

    Raises:
        UsageError: it is no name of a device.
        DataError: this machine has none of it.
    """
    if not re.fullmatch(r"cpu|mps|cuda(:\d{1,3})?", name):
        raise UsageError(f"device '{name}' is none of cpu, cuda, cuda:N, mps")
    device = torch.device(name)
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (device.index or 0) < there[device.type]:
        return device
    known = ", ".join(f"{count} {kind}" for kind, count in there.items() if count)
    raise DataError(f"torch sees no {name} here ({known}); leave --device out, or install a torch that does")
