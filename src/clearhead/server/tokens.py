"""POST /tokenize and /detokenize: between a text and the ids that a model reads."""

from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clearhead.server.http.bodies import RequestBody, read_body
from clearhead.server.loaded_runs import LoadedRuns
from clearhead.server.openai.fields import encode_prompts


class TokenizeBody(RequestBody):
    """A text, and the model that is to read it."""

    text: str
    model: str | None = Field(None, max_length=512)


class DetokenizeBody(RequestBody):
    """Ids, and the model that they are of."""

    tokens: Annotated[list[int], Field(fail_fast=True)]
    model: str | None = Field(None, max_length=512)


async def tokenize(request: Request) -> Response:
    """The ids of a text, as the model reads it in a prompt."""
    body = await read_body(request, TokenizeBody)
    runs: LoadedRuns = request.app.state.runs
    async with runs.use(body.model) as run:
        ids: list[int] = []
        if body.text:
            vocab_size, limits = run.options.model.vocab_size, request.app.state.config
            [(ids, _)] = await encode_prompts(body.text, run.tokenizers[0], vocab_size, limits, "text")
    return JSONResponse({"model": run.name, "tokens": ids, "count": len(ids)})


async def detokenize(request: Request) -> Response:
    """The text of ids."""
    body = await read_body(request, DetokenizeBody)
    runs: LoadedRuns = request.app.state.runs
    async with runs.use(body.model) as run:
        text = ""
        if body.tokens:
            tokenizer = run.tokenizers[0]
            limits = request.app.state.config
            [(_, text)] = await encode_prompts(body.tokens, tokenizer, tokenizer.vocab_size, limits, "tokens")
    return JSONResponse({"model": run.name, "text": text})


ROUTES = [Route("/tokenize", tokenize, methods=["POST"]), Route("/detokenize", detokenize, methods=["POST"])]
