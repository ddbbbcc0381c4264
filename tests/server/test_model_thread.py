"""One thread per model: in order, one at a time, closed within a bounded time."""

import asyncio
import logging
import sys
import threading
import time
from functools import partial

import pytest

from clearhead.server.http.errors import HttpError
from clearhead.server.http.model_thread import SWITCH_SECONDS, ModelThread, quick_switches


def started() -> ModelThread:
    thread = ModelThread("test")
    thread.start()
    return thread


def test_calls_run_in_one_thread_in_order_and_one_at_a_time() -> None:
    thread, running, order = started(), set[int](), list[int]()

    def work(number: int) -> tuple[int, int]:
        assert not running
        running.add(number)
        order.append(number)
        time.sleep(0.001)
        running.remove(number)
        return number, threading.get_ident()

    async def main() -> list[tuple[int, int]]:
        return await asyncio.gather(*(thread.call(partial(work, number)) for number in range(20)))

    results = asyncio.run(main())
    assert [number for number, _ in results] == order == [*range(20)]
    assert len({ident for _, ident in results}) == 1
    assert thread.close(10)


def test_what_a_call_raises_comes_back_and_hurts_nobody_else() -> None:
    thread = started()

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await thread.call(lambda: 1 // 0)
        assert await thread.call(lambda: 2) == 2

    asyncio.run(main())
    assert thread.close(10)


def test_what_is_posted_and_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    thread = started()
    with caplog.at_level(logging.ERROR):
        thread.post(lambda: 1 // 0)
        assert asyncio.run(thread.call(lambda: 3)) == 3
    assert "ZeroDivisionError" in caplog.text
    assert thread.close(10)


def test_a_call_that_is_cancelled_while_it_waits_is_not_run() -> None:
    thread, begun, release, ran = started(), threading.Event(), threading.Event(), list[int]()

    def hold() -> None:
        begun.set()
        assert release.wait(timeout=10)

    async def main() -> None:
        first = asyncio.ensure_future(thread.call(hold))
        await asyncio.to_thread(begun.wait, 10)
        waiting = asyncio.ensure_future(thread.call(lambda: ran.append(1)))
        await asyncio.sleep(0)
        assert not thread.is_idle
        waiting.cancel()
        await asyncio.sleep(0)
        release.set()
        await first
        await thread.call(lambda: ran.append(2))

    asyncio.run(main())
    assert ran == [2]
    assert thread.close(10)


def test_closing_refuses_what_waits_and_is_bounded() -> None:
    thread, begun, release = started(), threading.Event(), threading.Event()

    def hold() -> str:
        begun.set()
        assert release.wait(timeout=20)
        return "held"

    async def main() -> None:
        first = asyncio.ensure_future(thread.call(hold))
        await asyncio.to_thread(begun.wait, 10)
        waiting = asyncio.ensure_future(thread.call(lambda: 1))
        await asyncio.sleep(0)
        assert not await asyncio.to_thread(thread.close, 0.01), "what runs cannot be interrupted"
        with pytest.raises(HttpError) as refusal:
            await asyncio.wait_for(waiting, 10)
        assert refusal.value.status == 503
        release.set()
        assert await first == "held"
        with pytest.raises(HttpError, match="try again"):
            await thread.call(lambda: 1)

    asyncio.run(main())
    assert thread.close(10)
    assert thread.close(10), "twice is once"
    assert thread.is_idle


def test_switches_are_quick_only_as_long_as_the_server_lives() -> None:
    before = sys.getswitchinterval()
    with quick_switches():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    assert sys.getswitchinterval() == before
