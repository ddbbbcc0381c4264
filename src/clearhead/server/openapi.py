"""GET /openapi.json: what each route takes, made from the models that read its body, so that it cannot drift.

https://spec.openapis.org/oas/v3.1.0
"""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from clearhead.server.http.bodies import RequestBody
from clearhead.server.openai.chat import ChatBody
from clearhead.server.openai.completions import CompletionBody
from clearhead.server.openai.embeddings import EmbeddingBody
from clearhead.server.tokens import DetokenizeBody, TokenizeBody
from clearhead.server.translate import TranslateBody

BODIES: dict[str, type[RequestBody]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/embeddings": EmbeddingBody,
    "/translate": TranslateBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
TEXT = {"type": "string"}
OPTIONAL_TEXT = {"type": ["string", "null"]}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": TEXT, "type": TEXT, "param": OPTIONAL_TEXT, "code": OPTIONAL_TEXT},
        }
    },
}
REFUSALS = {"4XX": "what is wrong with the request", "503": "the server stops, or has no room for the run"}


def description(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The document that describes these routes; of pages it says nothing."""
    references, definitions = models_json_schema(
        [(body, "validation") for body in BODIES.values()], ref_template="#/components/schemas/{model}"
    )
    schemas = {path: references[body, "validation"] for path, body in BODIES.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Clearhead", "version": version("clearhead")},
        "paths": {
            route.path: {
                method.lower(): _operation(route, schemas.get(route.path))
                for method in sorted(route.methods - {"HEAD"})
            }
            for route in routes
            if isinstance(route, Route) and route.methods and not route.path.startswith("/page")
        },
        "components": {"schemas": {**definitions["$defs"], "Error": ERROR}},
    }


def _operation(route: Route, body: dict[str, Any] | None) -> dict[str, Any]:
    """What a route does, by one method."""
    refusal = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    operation: dict[str, Any] = {
        "summary": (route.endpoint.__doc__ or route.name).partition("\n")[0],
        "responses": {
            "200": {"description": "the answer"},
            **{status: {"description": why, **refusal} for status, why in REFUSALS.items()},
        },
    }
    if route.param_convertors:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": TEXT} for name in route.param_convertors
        ]
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


async def show_description(request: Request) -> Response:
    """This description."""
    state = request.app.state
    if not hasattr(state, "description"):
        state.description = description(request.app.routes)
    return JSONResponse(state.description)


ROUTES = [Route("/openapi.json", show_description, methods=["GET"])]
