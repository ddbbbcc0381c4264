"""POST /v1/embeddings: texts as vectors, the mean of an encoder's last layer over the text's tokens."""

import base64
from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from torch import Tensor

from clearhead.config.serving import ServerConfig
from clearhead.inference import evaluating
from clearhead.models import EncoderLM
from clearhead.models.eval_mode import refuse_not_finite
from clearhead.server.http.bodies import RequestBody, read_body
from clearhead.server.http.errors import HttpError
from clearhead.server.http.events import while_connected
from clearhead.server.http.large_json import large_response
from clearhead.server.loaded_run import LoadedRun
from clearhead.server.loaded_runs import LoadedRuns
from clearhead.server.openai.fields import Prompts, encode_prompts, usage


class EmbeddingBody(RequestBody):
    """The fields of a request for vectors, as OpenAI has them; `user` is not looked at."""

    input: Prompts
    model: str | None = Field(None, max_length=512)
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


async def embeddings(request: Request) -> Response:
    """Texts as vectors."""
    body = await read_body(request, EmbeddingBody)
    if body.dimensions is not None:
        raise HttpError(400, "`dimensions` is not supported: a vector has d_model numbers", "dimensions", "unsupported")
    return await while_connected(request, _answer(request, body))


ROUTES = [Route("/v1/embeddings", embeddings, methods=["POST"])]


async def _answer(request: Request, body: EmbeddingBody) -> Response:
    runs: LoadedRuns = request.app.state.runs
    async with runs.use(body.model) as run:
        model, rows = await _model_and_rows(run, body, request.app.state.config)
        # A call for each text: others have their turn between two, and a vector depends on its own text alone.
        vectors = [await run.thread.call(partial(embed, model, ids)) for ids in rows]
        is_base64 = body.encoding_format == "base64"

        def build() -> dict[str, object]:
            return {
                "object": "list",
                "model": run.name,
                "data": [
                    {
                        "object": "embedding",
                        "index": index,
                        "embedding": _base64(vector) if is_base64 else vector.tolist(),
                    }
                    for index, vector in enumerate(vectors)
                ],
                "usage": usage(sum(map(len, rows))),
            }

        return await large_response(build)


async def _model_and_rows(
    run: LoadedRun, body: EmbeddingBody, config: ServerConfig
) -> tuple[EncoderLM, list[list[int]]]:
    """The model, and the ids of each text as it reads them."""
    if not isinstance(run.model, EncoderLM):
        raise HttpError(400, f"the model {run.name} gives no vectors; a run trained on masked tokens does", "model")
    if "" in ([body.input] if isinstance(body.input, str) else body.input):
        raise HttpError(400, "`input` holds an empty text, which has no vector", "input", "invalid_value")
    vocab_size = run.model.config.vocab_size
    prompts = await encode_prompts(body.input, run.tokenizer, vocab_size, config, "input", framed=True)
    rows = [ids for ids, _ in prompts]
    longest = max(map(len, rows))
    if longest > run.block_size:
        raise HttpError(
            400,
            f"the model reads {run.block_size} tokens at once, and a text of `input` has {longest}",
            "input",
            "context_length_exceeded",
        )
    return run.model, rows


@torch.inference_mode()
def embed(model: EncoderLM, ids: Sequence[int]) -> Tensor:
    """The mean over the tokens of the last layer's output, (D,), float32 on the CPU.

    Raises:
        ClearheadError: it is not finite.
    """
    with evaluating(model):
        hidden = model.body(torch.tensor([[*ids]], device=model.device))  # (1, T, D)
    vector = hidden[0].float().mean(0).cpu()
    refuse_not_finite(vector)
    return vector


def _base64(vector: Tensor) -> str:
    """Little-endian float32, which the official client asks for and decodes by itself."""
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode("ascii")
