"""GET /v1/models and /v1/models/{id}: which runs there are, without loading any."""

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clearhead.errors import DataError
from clearhead.server.loaded_runs import LoadedRuns
from clearhead.workflows.runs.folder import RunFolder


async def list_models(request: Request) -> Response:
    """All runs, the default first."""
    runs: LoadedRuns = request.app.state.runs
    data = await asyncio.to_thread(lambda: [_model(run) for run in runs.folders()])
    return JSONResponse({"object": "list", "data": data})


async def show_model(request: Request) -> Response:
    """One run."""
    runs: LoadedRuns = request.app.state.runs
    return JSONResponse(_model(runs.folder(request.path_params["model"])))


ROUTES = [
    Route("/v1/models", list_models, methods=["GET"]),
    Route("/v1/models/{model}", show_model, methods=["GET"]),
]


def _model(run: RunFolder) -> dict[str, object]:
    """OpenAI's fields; and of ours `kind`, `chat` (it has a template) and `context`, None where the run is damaged."""
    kind = context = None
    try:
        config = run.config
        kind, context = config.objective, config.model.block_size
        created = int(run.folder.stat().st_mtime)
    except (DataError, OSError):
        created = 0
    return {
        "id": run.name,
        "object": "model",
        "created": created,
        "owned_by": "clearhead",
        "kind": kind,
        "chat": kind == "causal" and run.has_chat_template,
        "context": context,
    }
