"""Several runs behind one port: loaded once, when they are asked for; dropped when others need the memory."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from run_folders import write_run

from clearhead.config.serving import ServerConfig
from clearhead.errors import ClearheadError, UsageError
from clearhead.inference.constraints import Constraint, ConstraintCompiler
from clearhead.server.http.errors import HttpError
from clearhead.server.loaded_run import LoadedRun, bytes_needed
from clearhead.server.loaded_runs import GIB, LoadedRuns
from clearhead.workflows.runs.folder import RunFolder

NAMES = ["a", "b", "c"]


@pytest.fixture
def folders(tmp_path: Path) -> list[RunFolder]:
    return [write_run(tmp_path / "runs" / name) for name in NAMES]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


class Loads:
    """Makes runs, and keeps count; a load waits for `release`."""

    def __init__(self, *, held: bool = False, error: Exception | None = None) -> None:
        self.names, self.release, self.error = list[str](), threading.Event(), error
        if not held:
            self.release.set()

    def __call__(self, name: str, folder: RunFolder, config: ServerConfig) -> LoadedRun:
        loads = self

        class Counted(LoadedRun):
            def _load(self) -> None:
                loads.names.append(self.name)
                assert loads.release.wait(timeout=20)
                if loads.error is not None:
                    raise loads.error
                super()._load()

        return Counted(name, folder, config)


def limited(folders: list[RunFolder], runs_at_once: float) -> ServerConfig:
    config = ServerConfig(slots=2)
    return config.model_copy(update={"memory_gib": runs_at_once * bytes_needed(folders[0], config) / GIB})


def test_requests_whose_forms_are_not_compiled_are_told_when_a_run_closes(folders: list[RunFolder]) -> None:
    begun, release = threading.Event(), threading.Event()

    def compile_form(compiler: Callable[[], ConstraintCompiler]) -> Constraint:
        begun.set()
        release.wait(timeout=30)
        raise HttpError(400, "nobody waits for this")

    async def close_meanwhile() -> None:
        runs = LoadedRuns(folders, ServerConfig())
        async with runs.use("a") as loaded:
            requests = [asyncio.create_task(loaded.constraint(compile_form)) for _ in range(3)]
            assert await asyncio.to_thread(begun.wait, 20)
            threads = [thread for thread in threading.enumerate() if thread not in before]
            await runs.close(1.0)
            requests.append(asyncio.create_task(loaded.constraint(compile_form)))
            done, waiting = await asyncio.wait(requests, timeout=20)
            assert not waiting
            errors = [request.exception() for request in done if not request.cancelled()]
            assert [error.status for error in errors if isinstance(error, HttpError)] == [503] * 4
            compiling = [thread for thread in threads if thread.is_alive() and "asyncio" not in thread.name]
            assert compiling
            assert all(thread.daemon for thread in compiling), "a form holds up the end of the process"

    before = threading.enumerate()
    try:
        run(close_meanwhile())
    finally:
        release.set()


async def touch(runs: LoadedRuns, name: str | None) -> LoadedRun:
    async with runs.use(name) as loaded:
        return loaded


def test_the_first_is_the_default_and_nobody_is_loaded_before_he_is_asked_for(folders: list[RunFolder]) -> None:
    async def main() -> None:
        loads = Loads()
        runs = LoadedRuns(folders, ServerConfig(), loads)
        assert runs.names() == NAMES
        assert not loads.names
        assert (await touch(runs, None)).name == "a"
        assert (await touch(runs, "c")).name == "c"
        assert await touch(runs, "c") is await touch(runs, "c")
        assert loads.names == ["a", "c"]
        with pytest.raises(HttpError) as refusal:
            await touch(runs, "d")
        assert refusal.value.status == 404
        await runs.close(20)

    run(main())


def test_two_requests_for_a_run_load_it_once_and_who_goes_takes_nothing_along(folders: list[RunFolder]) -> None:
    async def main() -> None:
        loads = Loads(held=True)
        runs = LoadedRuns(folders, ServerConfig(), loads)
        first, second, third = (asyncio.ensure_future(touch(runs, "a")) for _ in range(3))
        await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.sleep(0)
        loads.release.set()
        assert await second is await third
        assert loads.names == ["a"]
        await runs.close(20)

    run(main())


def test_the_least_recently_used_run_is_dropped_and_never_one_in_use(folders: list[RunFolder]) -> None:
    async def main() -> None:
        loads = Loads()
        runs = LoadedRuns(folders, limited(folders, 2.5), loads)
        for name in ("a", "b", "a", "c"):
            dropped = await touch(runs, name)
            if name == "b":
                old = dropped
        assert [loaded.name for loaded in runs.loaded] == ["a", "c"]
        assert not old.thread._thread.is_alive()
        async with runs.use("a"):
            await touch(runs, "b")
            assert [loaded.name for loaded in runs.loaded] == ["a", "b"]
            async with runs.use("b"):
                with pytest.raises(HttpError, match="in use") as refusal:
                    await touch(runs, "c")
                assert refusal.value.status == 429
            await touch(runs, "c")
        assert [loaded.name for loaded in runs.loaded] == ["a", "c"]
        await runs.close(20)

    run(main())


def test_counted_tokens_outlive_their_run(folders: list[RunFolder]) -> None:
    async def main() -> None:
        runs = LoadedRuns(folders, limited(folders, 1.5), Loads())
        for name in ("a", "b", "a"):
            async with runs.use(name) as loaded:
                assert loaded.texts is not None
                loaded.texts.prompt_tokens += 5
                loaded.texts.new_tokens += 7
        assert [loaded.name for loaded in runs.loaded] == ["a"]
        assert runs.tokens() == {"a": (10, 14), "b": (5, 7)}
        await runs.close(20)

    run(main())


def test_a_run_that_never_fits_says_so(folders: list[RunFolder]) -> None:
    async def main() -> None:
        runs = LoadedRuns(folders, limited(folders, 0.5))
        with pytest.raises(HttpError, match="GiB") as refusal:
            await touch(runs, "a")
        assert refusal.value.status == 503
        await runs.close(20)

    run(main())


@pytest.mark.parametrize("damage", ["model.safetensors", "tokenizer.json", "clearhead.toml"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_damaged_run_is_a_sentence_without_a_path_and_the_others_are_well(
    folders: list[RunFolder], damage: str, is_there: bool
) -> None:
    path = folders[1].folder / damage
    content = path.read_bytes()
    if is_there:
        path.write_bytes(content[: len(content) // 2])
    else:
        path.unlink()

    async def main() -> None:
        runs = LoadedRuns(folders, ServerConfig())
        with pytest.raises(HttpError) as refusal:
            await touch(runs, "b")
        assert refusal.value.status == 503
        assert "b cannot be loaded" in refusal.value.message
        assert "/" not in refusal.value.message
        assert (await touch(runs, "a")).name == "a"
        path.write_bytes(content)
        assert (await touch(runs, "b")).name == "b", "it was put back"
        await runs.close(20)

    run(main())


def test_a_load_that_fails_is_tried_again_and_leaves_no_thread(folders: list[RunFolder]) -> None:
    async def main() -> None:
        loads = Loads(error=ClearheadError("no"))
        runs = LoadedRuns(folders, limited(folders, 1.5), loads)
        before = threading.active_count()
        for _ in range(5):
            with pytest.raises(HttpError):
                await touch(runs, "a")
        loads.error = None
        assert (await touch(runs, "b")).name == "b", "what failed takes no memory"
        assert threading.active_count() <= before + 1
        await runs.close(20)

    run(main())


def test_a_load_that_fails_when_nobody_waits_any_more_is_tried_again(folders: list[RunFolder]) -> None:
    async def main() -> None:
        loads = Loads(held=True, error=ClearheadError("no"))
        runs = LoadedRuns(folders, ServerConfig(), loads)
        client = asyncio.ensure_future(touch(runs, "a"))
        await asyncio.sleep(0.05)
        client.cancel()
        loading = runs._loading["a"]
        loads.release.set()
        await asyncio.wait([loading])
        loads.error = None
        assert (await touch(runs, "a")).name == "a"
        await runs.close(20)

    run(main())


def test_who_waited_for_a_load_that_failed_does_not_undo_the_next_one(folders: list[RunFolder]) -> None:
    async def main() -> None:
        loads = Loads(held=True, error=ClearheadError("no"))
        runs = LoadedRuns(folders, ServerConfig(), loads)

        async def try_twice() -> LoadedRun:
            try:
                return await touch(runs, "a")
            except HttpError:
                loads.error = None
                return await touch(runs, "a")

        clients = [asyncio.ensure_future(try_twice()) for _ in range(3)]
        await asyncio.sleep(0.05)
        loads.release.set()
        first, *others = await asyncio.gather(*clients)
        assert all(other is first for other in others)
        assert loads.names == ["a", "a"], "once in vain, once for all"
        await runs.close(20)

    run(main())


def test_a_load_that_fails_after_its_run_was_dropped_leaves_the_next_one_alone(folders: list[RunFolder]) -> None:
    async def main() -> None:
        loads = Loads(held=True, error=ClearheadError("no"))
        runs = LoadedRuns(folders, ServerConfig(), loads)
        client = asyncio.ensure_future(touch(runs, "a"))
        await asyncio.sleep(0.05)
        client.cancel()
        loading, dropping = runs._loading["a"], asyncio.ensure_future(runs._drop("a"))
        await asyncio.sleep(0)
        runs._make = Loads()
        successor = await touch(runs, "a")
        loads.release.set()
        await asyncio.wait([loading, dropping])
        assert runs.loaded == [successor]
        assert await touch(runs, "a") is successor
        assert list(runs._bytes) == ["a"]
        await runs.close(20)

    run(main())


def test_closing_while_a_run_is_being_loaded_is_bounded(folders: list[RunFolder]) -> None:
    async def main() -> None:
        loads = Loads(held=True)
        runs = LoadedRuns(folders, ServerConfig(), loads)
        waiting = asyncio.ensure_future(touch(runs, "a"))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(runs.close(0.1), 10)
        with pytest.raises((HttpError, asyncio.CancelledError)):
            await waiting
        loads.release.set()
        with pytest.raises(HttpError, match="stopping"):
            await touch(runs, "a")

    run(main())


def test_names_are_unambiguous(folders: list[RunFolder], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two runs are called a"):
        LoadedRuns([*folders, write_run(tmp_path / "others" / "a")], ServerConfig())


def test_the_memory_of_a_run_holds_its_draft_model_and_the_cache_of_its_texts(folders: list[RunFolder]) -> None:
    run_alone = bytes_needed(folders[0], ServerConfig())
    assert bytes_needed(folders[0], ServerConfig(draft="ngrams")) == run_alone
    assert bytes_needed(folders[0], ServerConfig(draft=str(folders[1].folder))) == 2 * run_alone
    assert bytes_needed(folders[0], ServerConfig(slots=64)) > bytes_needed(folders[0], ServerConfig(slots=16))
