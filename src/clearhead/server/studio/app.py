"""The studio's application: what `serve` offers, of all runs that there are at the time, and what looks inside them."""

import asyncio

from starlette.applications import Starlette

from clearhead.config.serving import ServerConfig
from clearhead.server.app import create_app
from clearhead.server.studio import beams, frames, page, runs, trainings, views, xray
from clearhead.server.studio.frames import Pages
from clearhead.server.studio.records import Logs
from clearhead.server.studio.runs import studio_runs
from clearhead.server.studio.trainings import TrainingProcesses

ROUTES = [*page.ROUTES, *runs.ROUTES, *trainings.ROUTES, *views.ROUTES, *xray.ROUTES, *beams.ROUTES, *frames.ROUTES]


def create_studio(config: ServerConfig) -> Starlette:
    """The ASGI application; `request.app.state` holds `logs`, `pages`, `trainings`, and what `create_app` puts there.

    Args:
        config: its limits; the address is `open_studio`'s.
    """
    app = create_app(studio_runs, config, ROUTES)
    app.state.logs, app.state.pages, app.state.trainings = Logs(), Pages(), TrainingProcesses()
    app.state.reading = asyncio.Lock()  # of the logs
    app.state.watched = set[object]()  # an entry for each stream
    return app
