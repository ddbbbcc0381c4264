"""POST /translate: sentences by a translator, the best translations first."""

import asyncio
import sys
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clearhead.config import TranslationConfig
from clearhead.config.serving import ServerConfig
from clearhead.data import Tokenizer, UnseenCharacterError
from clearhead.inference import Translation
from clearhead.inference.translation import source_rows
from clearhead.models import EncoderDecoder
from clearhead.server.http.bodies import RequestBody, read_body
from clearhead.server.http.errors import HttpError
from clearhead.server.http.events import while_connected
from clearhead.server.loaded_run import LoadedRun
from clearhead.server.loaded_runs import LoadedRuns
from clearhead.server.openai.fields import LONG
from clearhead.workflows.translating import aligned_words

MAX_BEAM = 32


class TranslateBody(RequestBody):
    """The fields of a request for translations; what is left out is as in `clearhead translate`."""

    text: str | Annotated[list[str], Field(fail_fast=True)]
    model: str | None = Field(None, max_length=512)
    n_best: int = Field(1, ge=1, le=MAX_BEAM)
    beam_size: int = Field(5, ge=1, le=MAX_BEAM)
    length_penalty: float = Field(0.6, ge=0, le=10)
    max_tokens: int | None = Field(None, ge=1)
    align: bool = False


async def translate(request: Request) -> Response:
    """Translate sentences."""
    body = await read_body(request, TranslateBody)
    return JSONResponse(await while_connected(request, _answer(request, body)))


ROUTES = [Route("/translate", translate, methods=["POST"])]


async def _answer(request: Request, body: TranslateBody) -> dict[str, object]:
    runs, limits = request.app.state.runs, request.app.state.config
    assert isinstance(runs, LoadedRuns)
    config = _search_options(body, limits)
    sentences = [body.text] if isinstance(body.text, str) else body.text
    if not sentences:
        raise HttpError(400, "`text` is empty; give at least one sentence", "text", "invalid_value")
    if len(sentences) > limits.max_prompts:
        raise HttpError(
            400,
            f"`text` must hold at most {limits.max_prompts} sentences, not {len(sentences)}",
            "text",
            "invalid_value",
        )
    async with runs.use(body.model) as run:
        if run.translations is None:
            raise HttpError(400, f"the model {run.name} is no translator", "model")
        rows = await _rows(run, sentences)
        results = await run.translations.search([*rows.values()], config)
        translations = [[Translation("", 0.0, [], [])] for _ in sentences]  # of a blank one
        for (index, ids), best in zip(rows.items(), results, strict=True):
            translations[index] = [Translation(run.tokenizer.decode(h.ids), h.score, ids, h.ids) for h in best]
        return {
            "object": "translations",
            "model": run.name,
            "translations": [[await _shown(run, t, align=body.align) for t in best] for best in translations],
        }


def _search_options(body: TranslateBody, limits: ServerConfig) -> TranslationConfig:
    if body.n_best > body.beam_size:
        raise HttpError(
            400,
            f"`n_best` ({body.n_best}) is more than `beam_size` ({body.beam_size}) holds",
            "n_best",
            "invalid_value",
        )
    if body.max_tokens is not None and body.max_tokens > limits.max_tokens:
        raise HttpError(
            400,
            f"`max_tokens` must be at most {limits.max_tokens} on this server, not {body.max_tokens}",
            "max_tokens",
            "invalid_value",
        )
    return TranslationConfig(
        beam_size=body.beam_size,
        length_penalty=body.length_penalty,
        n_best=body.n_best,
        max_new_tokens=body.max_tokens,
        engine=limits.engine,
    )


async def _rows(run: LoadedRun, sentences: list[str]) -> dict[int, list[int]]:
    """The ids of each sentence that is not blank, as the model reads them, by its number."""
    tokenizer: Tokenizer = run.tokenizers[0]

    def encode() -> dict[int, list[int]]:
        return source_rows(tokenizer, sentences, sys.maxsize)  # none is cut

    try:
        rows = await asyncio.to_thread(encode) if sum(map(len, sentences)) > LONG else encode()
    except UnseenCharacterError as error:
        raise HttpError(400, f"`text`: {error}", "text", "invalid_value") from None
    longest = max(map(len, rows.values()), default=0)
    if longest > run.block_size:
        raise HttpError(
            400,
            f"the model reads {run.block_size} tokens at once, and a sentence of `text` has {longest}",
            "text",
            "context_length_exceeded",
        )
    return rows


async def _shown(run: LoadedRun, translation: Translation, *, align: bool) -> dict[str, object]:
    """A translation; aligned on the model's thread, one at a time, so that others have their turn."""
    pairs = None
    model = run.model
    if align and isinstance(model, EncoderDecoder):
        pairs = await run.thread.call(lambda: aligned_words(model, *run.tokenizers, translation))
    return {"text": translation.text, "score": translation.score, "alignment": pairs}
