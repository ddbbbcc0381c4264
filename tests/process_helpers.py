"""Run a function in several processes of one machine, joined by gloo, within a time limit."""

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

LIMIT = 120.0  # seconds
FORKS = "forkserver" in multiprocessing.get_all_start_methods()
LOADED = [
    "pytest",
    "process_models",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "clearhead.workflows.training",
]


def run_processes(
    function: Callable[..., object], world_size: int, *args: object, limit: float = LIMIT, timeout: float = LIMIT
) -> list[Any]:
    """What `function(*args)` returns in each process, in the order of their ranks; one process is this one.

    Args:
        function: of a module.
        limit: seconds until all must have ended.
        timeout: seconds that one waits for another.
    """
    if world_size == 1:
        return [function(*args)]
    method = _start_method()
    with tempfile.TemporaryDirectory() as folder:
        context = start_processes(  # type: ignore[no-untyped-call]
            _join, (world_size, folder, timeout, function, args), nprocs=world_size, join=False, start_method=method
        )
        assert context is not None
        end = time.monotonic() + limit
        while not context.join(timeout=1):  # True once all have ended; it raises what one of them raised
            if time.monotonic() > end:
                for process in context.processes:
                    process.kill()
                raise AssertionError(f"{world_size} processes did not end within {limit:g} seconds")
        return [torch.load(Path(folder) / str(rank), weights_only=True) for rank in range(world_size)]


def _start_method() -> str:
    """Processes are forks of one that has loaded torch, and started no thread: loading takes longer than most tests."""
    if not FORKS:
        return "spawn"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        multiprocessing.set_forkserver_preload(LOADED)
        forkserver.ensure_running()
    return "forkserver"


def _join(
    rank: int, world_size: int, folder: str, timeout: float, function: Callable[..., object], args: tuple[object, ...]
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout),
    )
    try:
        torch.save(function(*args), Path(folder) / str(rank))
    finally:
        dist.destroy_process_group()
