"""A training that saves memory gives back what it frees."""

import sys

import pytest
from child_processes import finish

CHILD = """
import sys
from pathlib import Path
import torch
from clearhead.allocator import give_back_freed

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

torch.ones(8_000_000)  # freed, whereupon glibc keeps all that is smaller
if sys.argv[1] == "yes":
    give_back_freed()
tensors = [torch.ones(500_000) for _ in range(60)]
before = resident()
del tensors[::2]  # between those that stay
after = resident()
print((before - after) * 4096 / (30 * 2_000_000))
"""


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of a process")
def test_large_tensors_are_given_back_from_between_others() -> None:
    shares = [finish([sys.executable, "-c", CHILD, argument]) for argument in ("yes", "no")]
    given_back, kept = (float(done.stdout) for done in shares)
    assert given_back > 0.9
    assert kept < 0.1, "the allocator gives back by itself, so it need not be asked to"
