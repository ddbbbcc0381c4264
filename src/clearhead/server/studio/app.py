"""The studio's application: what `serve` offers, of all runs that there are at the time, and what looks inside them."""

import asyncio
from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from clearhead.config.serving import ServerConfig
from clearhead.server.app import create_app
from clearhead.server.http.errors import HttpError
from clearhead.server.http.guard import OPENING
from clearhead.server.studio import beams, frames, page, runs, trainings, views, xray
from clearhead.server.studio.frames import MadeOnce
from clearhead.server.studio.records import Logs
from clearhead.server.studio.runs import studio_runs
from clearhead.server.studio.trainings import TrainingProcesses

ROUTES = [*page.ROUTES, *runs.ROUTES, *trainings.ROUTES, *views.ROUTES, *xray.ROUTES, *beams.ROUTES, *frames.ROUTES]


async def open_once(request: Request) -> Response:
    """From an address that works once to one with the token, which no other user of the machine could read."""
    view = request.app.state.views.pop(request.path_params["key"], None)
    if view is None:
        raise HttpError(404, "this address has been used; open the one that `clearhead studio` printed")
    return Response(status_code=303, headers={"Location": view, "Cache-Control": "no-store"})


def create_studio(config: ServerConfig, views: Mapping[str, str] | None = None, code: str | None = None) -> Starlette:
    """The ASGI application; `request.app.state` holds `logs`, `results`, `trainings`, and what `create_app` puts there.

    Args:
        config: its limits; the address is `open_studio`'s.
        views: addresses with the token, by keys of which each works once.
        code: a model that the doctor examines beside the runs, such as 'model.py:build'.
    """
    app = create_app(studio_runs, config, [*ROUTES, Route(f"{OPENING}{{key}}", open_once, methods=["GET"])])
    app.state.views = dict(views or {})
    app.state.logs, app.state.results, app.state.trainings = Logs(), MadeOnce(), TrainingProcesses()
    app.state.code = code
    app.state.reading = asyncio.Lock()  # of the logs
    app.state.watched = set[object]()  # an entry for each stream
    return app
