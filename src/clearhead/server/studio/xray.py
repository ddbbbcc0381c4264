"""/studio/xray: the tokens of a text, the steps that a model takes with them, and the numbers that it computes."""

from collections.abc import Mapping

import numpy as np
import torch
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clearhead.errors import UsageError
from clearhead.inspection.capture.recording import activation_names, record
from clearhead.inspection.capture.sites import attention_sites, path
from clearhead.inspection.capture.trace import Array
from clearhead.inspection.capture.vectors import TokenVectors, token_vectors
from clearhead.inspection.steps.activations import activations_of_steps
from clearhead.inspection.steps.folding import Repeats, folded
from clearhead.inspection.steps.ours import trace_model
from clearhead.inspection.steps.table import TraceStep, TraceTable
from clearhead.models.eval_mode import evaluating
from clearhead.server.http.bodies import read_body
from clearhead.server.http.errors import HttpError
from clearhead.server.studio.views import TextBody, computed
from clearhead.workflows.prompts import Prompt

WIDTH = 512  # columns of an activation that are sent at once
MOST_ROWS = 8192
VECTORS = {"embedding vectors": "embedding", "position vectors": "positions"}  # beside the names of `record`


class XrayBody(TextBody):
    """Whether blocks that do the same as the one before them are told once."""

    fold: bool = True


class ValuesBody(TextBody):
    """A part of an activation: of these heads or groups, and from this column on."""

    name: str = Field(max_length=512)
    index: int = Field(0, ge=0)
    start: int = Field(0, ge=0)


async def xray(request: Request) -> Response:
    """Tokens, steps, and the shapes of what can be looked at. No head is off: the steps are the model's own."""
    body = await read_body(request, XrayBody)
    intact = body.model_copy(update={"without": []})
    notices = list[str]()
    view = await computed(request, intact, lambda prompt: _xray(prompt, fold=body.fold), notices.append)
    return JSONResponse({**view, "notices": notices})


async def values(request: Request) -> Response:
    """A matrix of an activation, float32 (rows, columns) in bytes: at most `WIDTH` columns, from `start` on."""
    body = await read_body(request, ValuesBody)

    def read(prompt: Prompt) -> bytes:
        matrices = _matrices(_activation(prompt, body.name))  # (N, rows, columns)
        if body.index >= len(matrices):
            raise HttpError(400, f"`index` must be below {len(matrices)}", "index")
        matrix = matrices[body.index]
        if body.start >= matrix.shape[1]:
            raise HttpError(400, f"`start` must be below {matrix.shape[1]}", "start")
        return np.ascontiguousarray(matrix[:MOST_ROWS, body.start : body.start + WIDTH], "<f4").tobytes()

    return Response(await computed(request, body, read), media_type="application/octet-stream")


ROUTES = [
    Route("/studio/xray", xray, methods=["POST"]),
    Route("/studio/xray/values", values, methods=["POST"]),
]


def _xray(prompt: Prompt, *, fold: bool) -> dict[str, object]:
    table = trace_model(prompt.model, *prompt.inputs, target=prompt.run.name)
    shapes = _shapes(prompt)
    vectors = {
        _vector_name(part, side): array.shape
        for side in token_vectors(prompt.model, *prompt.inputs)
        for part, array in _arrays(side).items()
    }
    sides = [("text" if prompt.source_labels is None else "target", prompt.inputs[-1], prompt.labels)]
    if prompt.source_labels is not None:
        sides.insert(0, ("source", prompt.inputs[0], prompt.source_labels))
    return {
        "sides": [{"side": side, "ids": ids[0].tolist(), "tokens": labels} for side, ids, labels in sides],
        "positions": prompt.model.config.positions,
        "vectors": [_described(name, shape) for name, shape in vectors.items()],
        "activations": [_described(name, shape) for name, shape in shapes.items()],
        "rows": _rows(table, activations_of_steps(prompt.model, table.steps, shapes), fold=fold),
        "sizes": dict(table.sizes),
        "verdict": table.verdict,
        "width": WIDTH,
    }


def _shapes(prompt: Prompt) -> dict[str, tuple[int, ...]]:
    """What `record` would keep, by name; T x T scores of all heads, which take the most memory, are not kept for it."""
    model, of_scores = prompt.model, (".scores", ".attention")
    names = [name for name in activation_names(model) if not name.endswith(of_scores)]
    with evaluating(model), torch.no_grad(), record(model, names) as trace:
        model(*prompt.inputs)
    last = {path(site.name, "v"): site.name for site in attention_sites(model)}
    shapes: dict[str, tuple[int, ...]] = {}
    for name in trace.names:
        shapes[name] = tuple(trace[name].shape)
        if name in last:
            query, key = shapes[path(last[name], "q")], shapes[path(last[name], "k")]
            for step in ("scores", "attention"):
                shapes[path(last[name], step)] = (*query[:3], key[2])  # (B, H, T_q, T_k)
    return shapes


def _rows(table: TraceTable, names: list[str | None], *, fold: bool) -> list[dict[str, object]]:
    """The steps in their order; `sentence` in the place of blocks that repeat the one before."""
    rows, index = list[dict[str, object]](), 0
    for entry in folded(table.steps) if fold else table.steps:
        if isinstance(entry, Repeats):
            rows.append({"sentence": entry.sentence})
            index += entry.steps * (entry.last - entry.first + 1)
        else:
            rows.append(_row(entry, names[index]))
            index += 1
    return rows


def _row(step: TraceStep, activation: str | None) -> dict[str, object]:
    file = (step.file or "").replace("\\", "/").rpartition("/")[2]
    return {
        "module": step.module,
        "operation": step.operation,
        "axes": list(step.axes),
        "shape": list(step.shape),
        "bytes": step.bytes,
        "parameters": step.parameters,
        "line": f"{file}:{step.line}" if file else "",
        "activation": activation,
    }


def _described(name: str, shape: tuple[int, ...]) -> dict[str, object]:
    """How many matrices of which size it is."""
    *_, rows, columns = (1, 1, *shape)
    return {"name": name, "shape": list(shape), "matrices": _count(shape), "rows": rows, "columns": columns}


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape[:-2], dtype=np.int64))


def _activation(prompt: Prompt, name: str) -> Array:
    """An activation of `record`, or the vectors of tokens or positions.

    Raises:
        HttpError: there is none of this name.
    """
    for side in token_vectors(prompt.model, *prompt.inputs):
        for part, array in _arrays(side).items():
            if name == _vector_name(part, side):
                return array
    if "*" in name:
        raise HttpError(400, "`name` must be the name of one activation", "name")
    try:
        with evaluating(prompt.model), torch.no_grad(), record(prompt.model, name) as trace:
            prompt.model(*prompt.inputs)
    except UsageError as error:
        raise HttpError(400, str(error), "name") from None
    if name not in trace:
        raise HttpError(400, f"the model computed no '{name}' of this text", "name")
    return trace[name]


def _arrays(side: TokenVectors) -> Mapping[str, Array]:
    arrays = {part: getattr(side, field) for part, field in VECTORS.items()}
    return {part: array for part, array in arrays.items() if array is not None}


def _vector_name(part: str, side: TokenVectors) -> str:
    return part if side.side == "text" else f"{side.side} {part}"


def _matrices(array: Array) -> Array:
    """(..., rows, columns) -> (N, rows, columns)."""
    shaped: Array = array.reshape(_count(array.shape), *(1, *array.shape)[-2:])
    return shaped
