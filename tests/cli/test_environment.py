"""What the command sets before torch loads, and how it loads it."""

import gc
import subprocess
import sys

import torch  # noqa: F401

from clearhead.cli.environment import load_torch

CHILD = """
import gc
from clearhead.cli.environment import load_torch
before = gc.get_stats()
load_torch()
assert gc.isenabled(), "the collector did not come back"
assert gc.get_stats() == before, "it looked for garbage while torch was loading"
assert gc.get_freeze_count() > 100_000, "it would look through torch again and again"
"""


def test_torch_loads_without_a_look_for_garbage_and_is_never_looked_through() -> None:
    subprocess.run([sys.executable, "-c", CHILD], check=True)


def test_a_program_that_has_torch_keeps_its_collector_as_it_is() -> None:
    frozen = gc.get_freeze_count()
    load_torch()
    assert gc.get_freeze_count() == frozen
    assert gc.isenabled()
