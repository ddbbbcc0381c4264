"""The runs that are served: loaded when somebody asks for them, dropped when others need the memory."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from clearhead.config.serving import ServerConfig
from clearhead.errors import UsageError
from clearhead.server.http.errors import HttpError
from clearhead.server.loaded_run import LoadedRun, bytes_needed
from clearhead.server.texts import BusyError
from clearhead.suggestions import did_you_mean
from clearhead.wording import listed
from clearhead.workflows.hardware import choose_device, memory
from clearhead.workflows.runs.digests import WEIGHTS
from clearhead.workflows.runs.folder import RunFolder

LOG = logging.getLogger(__name__)

CLOSING_SECONDS = 30.0  # a run that nobody uses has nothing to end
GIB = 2**30

MakeRun = Callable[[str, RunFolder, ServerConfig], LoadedRun]
ListRuns = Callable[[], Sequence[RunFolder]]


class LoadedRuns:
    """Several runs by their names. Used from the event loop's thread.

    Loading one takes as long as it takes, on the run's own thread; two requests for the same run wait for the same
    loading. If the runs' memory passes the limit, the least recently used ones are dropped, never one that is in use.
    """

    def __init__(self, runs: Sequence[RunFolder] | ListRuns, config: ServerConfig, make: MakeRun = LoadedRun) -> None:
        """
        Args:
            runs: the first is the default. A function lists those that there are now; a run whose model was saved
                anew is then loaded anew.
            config: of the server.
            make: what stands for a loaded run; it is loaded with `load`.

        Raises:
            UsageError: two have the same name.
        """
        self._is_live = callable(runs)
        self._list_runs: ListRuns = runs if callable(runs) else _fixed(runs)
        self._config, self._make = config, make
        total = memory(choose_device(config.device)) or 8 * GIB
        self._limit = total / 2 if config.memory_gib is None else config.memory_gib * GIB
        self._loading = dict[str, asyncio.Task[LoadedRun]]()  # by name, the least recently used first
        self._runs = dict[str, LoadedRun]()  # of those whose loading has begun
        self._bytes = dict[str, float]()
        self._versions = dict[str, int]()  # of the weights that were loaded, where they may change
        self._users = Counter[str]()
        self.dropped_tokens = dict[str, tuple[int, int]]()  # of prompts and of texts, by runs before they were dropped
        self._is_closed = False

    def folders(self) -> list[RunFolder]:
        """Those that can be used, the default first."""
        return list(self._list_runs())

    def names(self) -> list[str]:
        """Their names."""
        return [run.name for run in self.folders()]

    def folder(self, name: str | None) -> RunFolder:
        """The folder of a run, by its name; of the default by None.

        Raises:
            HttpError: 404, there is none.
        """
        folders = {run.name: run for run in self._list_runs()}
        if name is None and folders:
            return next(iter(folders.values()))
        if name is None or name not in folders:
            known = f"; the models here are {listed([*folders], 5)}" if folders else ""
            hint = did_you_mean(name or "", [*folders]) or known
            raise HttpError(404, f"there is no such model here{hint}", "model", "model_not_found")
        return folders[name]

    def tokens(self) -> dict[str, tuple[int, int]]:
        """How many tokens of prompts each run has read, and how many it has written, ever."""
        counts = dict(self.dropped_tokens)
        for name, run in self._runs.items():
            if run.texts is not None:
                before = self.dropped_tokens.get(name, (0, 0))
                counts[name] = before[0] + run.texts.prompt_tokens, before[1] + run.texts.new_tokens
        return counts

    @property
    def loaded(self) -> list[LoadedRun]:
        """Those in memory, the least recently used first."""
        done = (name for name, task in self._loading.items() if task.done())
        return [self._runs[name] for name in done if name in self._runs]

    def refusal(self) -> HttpError | None:
        """The error of any request for texts, where every run is in memory and its queue is full."""
        if self._is_live:
            return None  # there may be others, which a look at the folders would show
        runs = [self._runs.get(name) for name in self.names()]
        queues = [run.texts for run in runs if run is not None and run.texts is not None]
        if len(queues) < len(runs) or any(queue.n_texts < queue.capacity for queue in queues):
            return None
        return BusyError(max(queue.n_texts for queue in queues)) if queues else None

    @asynccontextmanager
    async def use(self, name: str | None = None) -> AsyncIterator[LoadedRun]:
        """A run, loaded; inside the `with` it stays so. Leaving does not suspend.

        Raises:
            HttpError: 404, there is no such run; 503, it cannot be loaded; 429, others take the memory that it needs.
        """
        name = self.folder(name).name
        self._users[name] += 1
        try:
            yield await self._run(name)
        finally:
            self._users[name] -= 1

    async def close(self, seconds: float) -> None:
        """End everything, within about so many seconds."""
        self._is_closed = True
        for task in self._loading.values():
            task.cancel()
        runs, self._runs = [*self._runs.values()], {}
        for run in runs:
            run.end_texts()
        await asyncio.gather(*(asyncio.to_thread(run.close, seconds) for run in runs))

    async def _run(self, name: str) -> LoadedRun:
        if self._is_closed:
            raise HttpError(503, "the server is stopping", retry_after=1)
        if self._is_live and self._is_free(name) and self._versions[name] != _version(self.folder(name)):
            await self._drop(name)
        task = self._loading.pop(name, None)
        if task is None or (task.done() and _failed(task)):
            task = asyncio.ensure_future(self._load(name))
            task.add_done_callback(partial(self._forget_failure, name))
        self._loading[name] = task  # the last: it is the most recently used
        return await asyncio.shield(task)

    def _is_free(self, name: str) -> bool:
        """Whether a run is loaded, and used by nobody but who asks."""
        return name in self._bytes and self._users[name] == 1 and self._loading[name].done()

    def _forget_failure(self, name: str, task: asyncio.Task[LoadedRun]) -> None:
        """The next request tries again; those who waited for this task may all have gone, or come back before it."""
        if _failed(task) and self._loading.get(name) is task:
            del self._loading[name]

    async def _load(self, name: str) -> LoadedRun:
        folder = self.folder(name)
        run: LoadedRun | None = None
        try:
            self._versions[name] = _version(folder)  # before it is read: what comes later is seen at the next request
            needed = bytes_needed(folder, self._config)
            await self._make_room(name, needed)
            run = self._make(name, folder, self._config)
            self._runs[name], self._bytes[name] = run, needed
            await run.load()
        except BaseException as error:
            if run is not None and self._runs.get(name) is run:  # else it was dropped, and a successor has the name
                del self._runs[name], self._bytes[name]
            if isinstance(error, HttpError) or not isinstance(error, Exception):
                raise
            LOG.error("the run %s cannot be loaded", name, exc_info=error)
            raise HttpError(
                503,
                f"the model {name} cannot be loaded: it is damaged, or its training has saved none yet; the server's "
                "own log says more",
                "model",
                "model_unavailable",
            ) from None
        return run

    async def _make_room(self, name: str, needed: float) -> None:
        """Drop the least recently used runs until there is room.

        Raises:
            HttpError: 503, there never is; 429, not before others are done.
        """
        if needed > self._limit:
            raise HttpError(
                503,
                f"the model {name} needs about {needed / GIB:.1f} GiB, and the server's limit (memory_gib) is "
                f"{self._limit / GIB:.1f}",
                "model",
                "model_unavailable",
            )
        while sum(self._bytes.values()) + needed > self._limit:
            idle = [other for other in self._loading if other in self._bytes and not self._users[other]]
            if not idle:
                raise HttpError(
                    429, "the models in use leave no memory for this one; try again", "model", retry_after=1
                )
            await self._drop(idle[0])

    async def _drop(self, name: str) -> None:
        self.dropped_tokens = self.tokens()
        run = self._runs.pop(name)
        del self._loading[name], self._bytes[name]
        LOG.info("dropping the run %s to make room", name)
        run.end_texts()
        await asyncio.to_thread(run.close, CLOSING_SECONDS)
        del run
        gc.collect()  # a model holds itself in circles


def _fixed(runs: Sequence[RunFolder]) -> ListRuns:
    twice = [name for name, number in Counter(run.name for run in runs).items() if number > 1]
    if twice:
        raise UsageError(f"two runs are called {twice[0]}, so requests could not name them; rename one's folder")
    return lambda: runs


def _version(folder: RunFolder) -> int:
    """A number that changes when the run's weights are written; 0 where there are none."""
    try:
        return (folder.folder / WEIGHTS).stat().st_mtime_ns
    except OSError:
        return 0


def _failed(task: asyncio.Task[LoadedRun]) -> bool:
    return task.cancelled() or task.exception() is not None
