"""/frame/...: pages that are complete in themselves, shown in a frame of the studio.

A frame cannot send the token in a header, so each has an address with a key of its own, which opens nothing else.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from clearhead.doctor.report.page import render
from clearhead.doctor.report.report import Report
from clearhead.errors import ClearheadError
from clearhead.inspection.architecture import ArchitectureReport, Mark
from clearhead.server.http.errors import HttpError
from clearhead.server.studio.runs import run_of
from clearhead.server.studio.verdicts import marks_of
from clearhead.workflows.examining import check_model, resolve
from clearhead.workflows.runs.digests import WEIGHTS
from clearhead.workflows.runs.folder import RunFolder

T = TypeVar("T")

MOST = 32  # results that are kept
THREADS = 2  # that make them
WAITING = 8  # results that are being made, or are to be
# The page's own policy, which it brings in its head, allows its own scripts alone.
HEADERS = {"Content-Security-Policy": "frame-ancestors 'self'", "Cache-Control": "no-store"}


class MadeOnce:
    """What takes a while to make: pages, and reports of the doctor. Each is made once, in a thread."""

    def __init__(self) -> None:
        self._results = dict[Hashable, asyncio.Future[Any]]()
        self._room = asyncio.Semaphore(THREADS)

    def __len__(self) -> int:
        return len(self._results)

    async def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns for this key, now or before.

        Raises:
            HttpError: 429, many are waiting to be made.
        """
        task = self._results.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            if sum(not other.done() for other in self._results.values()) >= WAITING:
                raise HttpError(429, "other pages are being made; try again in a moment", retry_after=5)
            task = self._results[key] = asyncio.ensure_future(self._made(make))
            for old in [other for other, result in self._results.items() if result.done()][: len(self) - MOST]:
                del self._results[old]
        result: T = await asyncio.shield(task)
        return result

    async def _made(self, make: Callable[[], T]) -> T:
        """On a thread of its own: what takes seconds keeps nobody else waiting, nor the end of the process."""
        async with self._room:
            result = Future[T]()

            def run() -> None:
                try:
                    result.set_result(make())
                except BaseException as error:
                    result.set_exception(error)

            Thread(target=run, name="page", daemon=True).start()
            return await asyncio.wrap_future(result)


async def architecture(request: Request) -> Response:
    """The page of `clearhead describe --report`."""
    run = run_of(request)
    return await _framed(request, ("architecture", *_version(run)), lambda: _drawn(run, []))


async def judged(request: Request) -> Response:
    """The same with what the doctor says, in its places."""
    run = run_of(request)
    report = await _examined(request, run)
    return await _framed(request, ("judged", *_version(run)), lambda: _drawn(run, marks_of(report)))


async def doctor(request: Request) -> Response:
    """The page of `clearhead doctor --html` of a run."""
    report = await _examined(request, run_of(request))
    return HTMLResponse(render(report), headers=HEADERS)


async def code(request: Request) -> Response:
    """The same of the model that the command line named."""
    target = request.app.state.code
    if target is None:
        raise HttpError(404, "name a model when you start the studio, as in `clearhead studio model.py:build`")
    report = await _made(request, ("code", _written(Path(resolve(target).location))), partial(check_model, target))
    return HTMLResponse(render(report), headers=HEADERS)


ROUTES = [
    Route("/frame/architecture/{name}", architecture, methods=["GET"]),
    Route("/frame/judged/{name}", judged, methods=["GET"]),
    Route("/frame/doctor/{name}", doctor, methods=["GET"]),
    Route("/frame/code", code, methods=["GET"]),
]


async def _made(request: Request, key: Hashable, make: Callable[[], T]) -> T:
    results: MadeOnce = request.app.state.results
    try:
        return await results.get(key, make)
    except ClearheadError as error:
        raise HttpError(400, str(error)) from None


async def _framed(request: Request, key: Hashable, make: Callable[[], str]) -> Response:
    return HTMLResponse(await _made(request, key, make), headers=HEADERS)


async def _examined(request: Request, run: RunFolder) -> Report:
    return await _made(request, ("report", *_version(run)), partial(check_model, str(run.folder)))


def _version(run: RunFolder) -> tuple[str, int]:
    """A run, and when its weights were written: what was made of older ones is made again."""
    return str(run.folder), _written(run.folder / WEIGHTS)


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _drawn(run: RunFolder, marks: list[Mark]) -> str:
    return ArchitectureReport(run.config.model, run.name, marks).html()
