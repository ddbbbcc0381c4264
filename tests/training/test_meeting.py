"""Processes that torchrun starts again meet without those that died before them."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import HashStore, Store, TCPStore

from clearhead.errors import SilentExit, UsageError
from clearhead.training import Processes, ProcessLostError, join_processes, launchers, processes
from clearhead.training.processes import LAUNCHER, meet, own_launcher

WORLD_SIZE = 3


def joined(store: TCPStore) -> list[Store]:
    """What each of three threads, which stand for processes, has as its part of the store."""

    def member(rank: int) -> Store:
        client = TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=20))
        return meet(client, rank, WORLD_SIZE)

    with ThreadPoolExecutor(WORLD_SIZE) as pool:
        return list(pool.map(member, range(WORLD_SIZE)))


def test_what_dead_processes_wrote_is_not_there_for_those_that_come_after_them() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for start in range(3):
        parts = joined(store)
        assert not any(part.check(["address"]) for part in parts)
        parts[0].set("address", str(start))
        assert [part.get("address").decode() for part in parts] == [str(start)] * WORLD_SIZE
        assert {part.get(f"{LAUNCHER}/{rank}").decode() for rank, part in enumerate(parts)} == {own_launcher()}
        dead = str(store.add("clearhead/tickets", 1))
        store.set("clearhead/ticket/1", dead)  # killed before it had an answer


def test_a_process_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TIMEOUT", timedelta(seconds=0.1))
    with pytest.raises(ProcessLostError, match="rank 1, 2 of this training did not come"):
        meet(HashStore(), 0, WORLD_SIZE)


def test_one_process_has_the_launcher_that_started_it() -> None:
    assert launchers() == {own_launcher()}
    assert f"/{os.getppid()}/" in own_launcher()


@pytest.mark.parametrize("rank", [0, 1])
def test_more_processes_than_gpus_are_a_sentence(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "LOCAL_RANK": rank, "RANK": rank}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(processes, "rendezvous", lambda *_, **__: iter([(None, rank, 2)]))
    expected = SilentExit if rank else UsageError
    with pytest.raises(expected, match=None if rank else "2 processes are more than this machine has GPUs, 1"):
        join_processes().__enter__()
    assert Processes.joined() == Processes()
