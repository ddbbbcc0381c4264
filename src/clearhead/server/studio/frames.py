"""/frame/...: pages that are complete in themselves, shown in a frame of the studio.

A frame cannot send the token in a header, so each has an address with a key of its own, which opens nothing else.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Thread

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from clearhead.doctor.report.page import render
from clearhead.errors import ClearheadError
from clearhead.inspection.architecture import ArchitectureReport
from clearhead.server.http.errors import HttpError
from clearhead.server.studio.runs import run_of
from clearhead.workflows.examining import check_model
from clearhead.workflows.runs.digests import WEIGHTS
from clearhead.workflows.runs.folder import RunFolder

MOST = 16  # pages that are kept
THREADS = 2  # that make them
WAITING = 8  # pages that are being made, or are to be
# The page's own policy, which it brings in its head, allows its own scripts alone.
HEADERS = {"Content-Security-Policy": "frame-ancestors 'self'", "Cache-Control": "no-store"}


class Pages:
    """Pages that take a while to make, by what they were made of."""

    def __init__(self) -> None:
        self._pages = dict[object, asyncio.Future[str]]()
        self._room = asyncio.Semaphore(THREADS)

    def __len__(self) -> int:
        return len(self._pages)

    async def page(self, key: object, make: Callable[[], str]) -> str:
        """The page; made once, in a thread.

        Raises:
            HttpError: 429, many are waiting to be made.
        """
        task = self._pages.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            if sum(not other.done() for other in self._pages.values()) >= WAITING:
                raise HttpError(429, "other pages are being made; try again in a moment", retry_after=5)
            task = self._pages[key] = asyncio.ensure_future(self._made(make))
            for old in [other for other, page in self._pages.items() if page.done()][: len(self._pages) - MOST]:
                del self._pages[old]
        return await asyncio.shield(task)

    async def _made(self, make: Callable[[], str]) -> str:
        """On a thread of its own: what takes seconds keeps nobody else waiting, nor the end of the process."""
        async with self._room:
            page = Future[str]()

            def run() -> None:
                try:
                    page.set_result(make())
                except BaseException as error:
                    page.set_exception(error)

            Thread(target=run, name="page", daemon=True).start()
            return await asyncio.wrap_future(page)


async def architecture(request: Request) -> Response:
    """The page of `clearhead describe --report`."""
    return await _framed(request, "architecture", _architecture)


async def doctor(request: Request) -> Response:
    """The page of `clearhead doctor --html`."""
    return await _framed(request, "doctor", _examined)


ROUTES = [
    Route("/frame/architecture/{name}", architecture, methods=["GET"]),
    Route("/frame/doctor/{name}", doctor, methods=["GET"]),
]


async def _framed(request: Request, kind: str, make: Callable[[RunFolder], str]) -> Response:
    run = run_of(request)
    try:
        written = (run.folder / WEIGHTS).stat().st_mtime_ns
    except OSError:
        written = 0
    pages: Pages = request.app.state.pages
    try:
        page = await pages.page((kind, str(run.folder), written), partial(make, run))
    except ClearheadError as error:
        raise HttpError(400, str(error)) from None
    return HTMLResponse(page, headers=HEADERS)


def _architecture(run: RunFolder) -> str:
    return ArchitectureReport(run.config.model, run.name).html()


def _examined(run: RunFolder) -> str:
    return render(check_model(str(run.folder)))
