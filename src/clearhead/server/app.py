"""The application: routes, what is checked before them, and what lives as long as the server."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from clearhead.config.serving import ServerConfig
from clearhead.server import metrics, openapi, page, tokens, translate
from clearhead.server.admission import Admission
from clearhead.server.http.errors import EXCEPTION_HANDLERS
from clearhead.server.http.guard import Guard
from clearhead.server.http.model_thread import quick_switches
from clearhead.server.loaded_runs import ListRuns, LoadedRuns
from clearhead.server.openai import chat, completions, embeddings, models
from clearhead.workflows.runs.folder import RunFolder

CLOSING_SECONDS = 1.0  # for the step that a model is in; the texts have had `shutdown_seconds` before


async def healthz(request: Request) -> Response:
    """Whether the server answers."""
    return JSONResponse({"status": "ok"})


# Each room adds its own list.
ROUTES: Sequence[BaseRoute] = [
    Route("/healthz", healthz, methods=["GET"]),
    *models.ROUTES,
    *completions.ROUTES,
    *chat.ROUTES,
    *embeddings.ROUTES,
    *translate.ROUTES,
    *tokens.ROUTES,
    *metrics.ROUTES,
    *openapi.ROUTES,
    *page.ROUTES,
]


def create_app(
    runs: Sequence[RunFolder] | ListRuns, config: ServerConfig | None = None, routes: Sequence[BaseRoute] = ()
) -> Starlette:
    """The ASGI application that serves these runs; `request.app.state` holds `config`, `runs` and `metrics`.

    Args:
        runs: to serve, by their names; they are loaded when somebody asks for them. A function lists those of now.
        config: its limits; the address is `serve`'s.
        routes: that come before those of the server.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with quick_switches():
            try:
                yield
            finally:
                await app.state.runs.close(min(CLOSING_SECONDS, app.state.config.shutdown_seconds))

    app = Starlette(routes=[*routes, *ROUTES], exception_handlers=EXCEPTION_HANDLERS, lifespan=lifespan)
    app.router.redirect_slashes = False  # a redirection would lead wherever the Host header says
    app.state.config = config = config or ServerConfig()
    app.state.runs = LoadedRuns(runs, config)
    app.state.metrics = metrics.Metrics()
    writing = {route.path: route.endpoint for route in (*completions.ROUTES, *chat.ROUTES)}
    admitted = Admission(app.build_middleware_stack(), app.state.runs, writing)
    guarded = Guard(admitted, config)  # around what answers an exception, too
    app.middleware_stack = metrics.Metering(guarded, app.state.metrics, app.routes)
    return app
