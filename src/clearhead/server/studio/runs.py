"""/studio/runs: all runs, their curves, and what their trainings do while they do it."""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clearhead.pages import printable
from clearhead.server.http.bodies import RequestBody, read_body
from clearhead.server.http.errors import HttpError
from clearhead.server.http.events import event_stream
from clearhead.server.http.guard import frame_address
from clearhead.server.studio.records import Logs, read_records, sent, state_of, summary_of
from clearhead.workflows.runs.find import all_runs
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.paths import RUNS

POLL_SECONDS = (
    2.0  # a page draws what each look finds, and one that has gone is noticed then; oftener slows the training
)
EVENT = 2**18  # bytes of a log that one event tells of
STREAMS = 64  # that are watched at the same time
MAX_RUNS = 500  # in the list
POINTS = 1000  # of a line in the browser


class WatchBody(RequestBody):
    """From where in the log to go on."""

    offset: int = Field(0, ge=0)
    stream: Literal[True] = True  # what every streamed request says


def studio_runs() -> list[RunFolder]:
    """The runs under `runs` whose names a page can send, the one that was written to last first."""
    return [run for run in all_runs() if run.name.isprintable() and not leads_out(run.folder)]


def leads_out(folder: Path) -> bool:
    """Whether a folder under `runs`, or a file in it, is a link to elsewhere: whoever sends a run may have put it."""
    home = os.path.realpath(RUNS)
    if os.path.realpath(folder) != os.path.join(home, folder.name):
        return True
    try:
        with os.scandir(folder) as entries:
            links = [entry.path for entry in entries if entry.is_symlink()]
    except OSError:
        return True
    return any(os.path.commonpath([home, os.path.realpath(link)]) != home for link in links)


async def list_runs(request: Request) -> Response:
    """All runs, the newest first; and the model of code that the studio was started with."""
    logs: Logs = request.app.state.logs

    def read() -> list[dict[str, object]]:
        return [summary_of(run, logs.of(run)) for run in islice(studio_runs(), MAX_RUNS)]

    code, token = request.app.state.code, request.app.state.config.token
    named = code and {"name": printable(code), "doctor": frame_address("/frame/code", token)}
    async with request.app.state.reading:
        return JSONResponse({"runs": await asyncio.to_thread(read), "code": named})


async def show_curve(request: Request) -> Response:
    """The lines of a run's training, its samples, and how far into the log that is."""
    run, logs = run_of(request), request.app.state.logs

    def read() -> dict[str, object]:
        log = logs.of(run)
        history, summary = log.history, summary_of(run, log)
        token = request.app.state.config.token
        return {
            **summary,
            "offset": log.offset,
            "train": thinned(history.train),
            "validation": thinned(history.validation),
            "learning_rate": thinned(history.learning_rates),
            "gradient_norm": thinned(history.gradient_norms),
            "speed": thinned(history.speeds),
            "samples": [{"step": sample.step, "text": printable(sample.text)} for sample in history.samples],
            "architecture": frame_address(f"/frame/architecture/{run.name}", token),
            "judged": frame_address(f"/frame/judged/{run.name}", token),
            "doctor": frame_address(f"/frame/doctor/{run.name}", token),
        }

    async with request.app.state.reading:
        return JSONResponse(await asyncio.to_thread(read))


def thinned(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `POINTS` of the points and the last, evenly spaced."""
    line = list(points)
    every = -(-len(line) // POINTS)
    return line[:: every or 1] + (line[-1:] if every > 1 and (len(line) - 1) % every else [])


async def watch(request: Request) -> Response:
    """The records of a training as they are written, until it ends.

    Raises:
        HttpError: 429, as many as may be are watched already.
    """
    run = run_of(request)
    body = await read_body(request, WatchBody)
    return event_stream(request, _records(run, body.offset, request.app.state.watched), done=False)


async def _records(run: RunFolder, offset: int, watched: set[object]) -> AsyncGenerator[dict[str, object], None]:
    if len(watched) >= STREAMS:
        raise HttpError(429, f"{STREAMS} trainings are being watched already; close some pages", retry_after=5)
    watcher = object()
    watched.add(watcher)
    try:
        while True:
            state = await asyncio.to_thread(state_of, run)  # before the log is read: its end stands there by then
            records, reached = await asyncio.to_thread(read_records, run, offset, EVENT)
            has_more = reached - offset >= EVENT
            offset = reached
            yield {"state": state, "offset": offset, "records": [sent(record) for record in records]}
            if has_more:
                continue
            if state != "training":
                return
            await asyncio.sleep(POLL_SECONDS)
    finally:
        watched.discard(watcher)


async def stop(request: Request) -> Response:
    """Ask a run's training, wherever it runs, to save and end."""
    run = run_of(request)
    if not await asyncio.to_thread(lambda: run.is_training):
        raise HttpError(409, f"{run.name} is not being trained")
    await asyncio.to_thread(run.stop_file.touch)
    return JSONResponse({"name": run.name})


def run_of(request: Request) -> RunFolder:
    """The run that the path names.

    Raises:
        HttpError: 404, there is none.
    """
    run: RunFolder = request.app.state.runs.folder(request.path_params["name"])
    return run


ROUTES = [
    Route("/studio/runs", list_runs, methods=["GET"]),
    Route("/studio/runs/{name}", show_curve, methods=["GET"]),
    Route("/studio/runs/{name}/events", watch, methods=["POST"]),
    Route("/studio/runs/{name}/stop", stop, methods=["POST"]),
]
