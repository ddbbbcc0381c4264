"""/studio/attention, /predict, ...: what a model does with a text. `inspection` computes it; here it is only sent."""

import base64
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, TypeVar

import numpy as np
import torch
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clearhead import inspection
from clearhead.errors import ClearheadError
from clearhead.inference.text_stream import INCOMPLETE
from clearhead.inspection.attention.view import default_kind
from clearhead.inspection.capture.sites import AttentionKind, attention_sites
from clearhead.inspection.capture.trace import Array
from clearhead.inspection.heads.ablation import without_heads
from clearhead.models import EncoderDecoder
from clearhead.models.eval_mode import evaluating
from clearhead.server.http.bodies import RequestBody, read_body
from clearhead.server.http.errors import HttpError
from clearhead.server.loaded_run import LoadedRun
from clearhead.server.loaded_runs import LoadedRuns
from clearhead.workflows.attending import attention_of
from clearhead.workflows.hardware import enough_memory
from clearhead.workflows.predicting import prediction_of, speller
from clearhead.workflows.prompts import Prompt, prompt_of

T = TypeVar("T")
Head = Annotated[list[int | str], Field(min_length=3, max_length=3, fail_fast=True)]

THUMBNAIL = 32  # cells along a side of a head on the wall
FORBIDDEN = 255  # on the wall; weights are 0 to 254
MOST_WEIGHTS = 2**26  # numbers of all maps together: what is longer is refused before it is computed
MOST_TOP = 200


class TextBody(RequestBody):
    """A run, and what its model is to read. `without` are heads that write nothing: [kind, layer, head]."""

    model: str | None = Field(None, max_length=512)
    text: str = Field(max_length=200_000)
    target: str | None = Field(None, max_length=200_000)
    without: list[Head] = Field([], max_length=4096)


class AttentionBody(TextBody):
    """Which attention."""

    of: AttentionKind | None = None


class LayerBody(AttentionBody):
    """One of its layers."""

    layer: int = Field(ge=0)


class CellBody(LayerBody):
    """One weight of one head."""

    head: int = Field(ge=0)
    query: int = Field(ge=0)
    key: int = Field(ge=0)


class PredictBody(TextBody):
    """What to look at of each position."""

    top_k: int = Field(10, ge=1, le=MOST_TOP)
    lens: bool = False


class PositionBody(TextBody):
    """One position; below 0, counted from the end."""

    position: int = -1


class ContinuedBody(PositionBody):
    """The token to go on with behind it."""

    token: int = Field(ge=0)


class AttributionBody(PositionBody):
    """Why this token, and not that one."""

    token: int = Field(ge=0)
    contrast: int | None = Field(None, ge=0)


async def attention(request: Request) -> Response:
    """Every head at a glance: its numbers, and its map in small."""
    body = await read_body(request, AttentionBody)
    return await _answer(request, body, lambda prompt: _wall(prompt, body.of))


async def layer_weights(request: Request) -> Response:
    """The maps of a layer, float32 (H, T_q, T_k) in bytes; NaN where the mask forbids."""
    body = await read_body(request, LayerBody)

    def weights(prompt: Prompt) -> bytes:
        view = attention_of(prompt, body.of)
        if body.layer >= len(view.weights):
            raise HttpError(400, f"there is no layer {body.layer}: the model has {len(view.weights)}", "layer")
        chosen = np.where(view.allowed, view.weights[body.layer], np.nan)
        return chosen.astype("<f4").tobytes()

    content = await computed(request, body, weights)
    return Response(content, media_type="application/octet-stream")


async def cell(request: Request) -> Response:
    """How a head comes to one weight."""
    body = await read_body(request, CellBody)

    def explained(prompt: Prompt) -> dict[str, object]:
        of = body.of or default_kind(prompt.model)
        cell_at = of, body.layer, body.head, body.query, body.key
        return inspection.attention_cell(prompt.model, prompt.inputs, *cell_at).as_dict()

    return await _answer(request, body, explained)


async def predict(request: Request) -> Response:
    """What the model expects at each position."""
    body = await read_body(request, PredictBody)
    return await _answer(
        request, body, lambda prompt: prediction_of(prompt, top_k=body.top_k, lens=body.lens).as_dict()
    )


async def logits(request: Request) -> Response:
    """All logits of a position, float32 in base64, and the texts of the likeliest tokens."""
    body = await read_body(request, PositionBody)

    def read(prompt: Prompt) -> dict[str, object]:
        position = _position(prompt, body.position)
        model, ids = prompt.model, prompt.inputs[-1][0].tolist()
        with evaluating(model), torch.no_grad():
            row = model.head(model.body(*prompt.inputs)[:, position])[0].float().cpu()  # (V,)
        spell, best = speller(prompt.tokenizer), row.topk(min(MOST_TOP, len(row))).indices.tolist()
        is_masked = prompt.run.config.objective == "masked"
        before = (ids[position - 1] if position else None) if is_masked else ids[position]
        return {
            "position": position,
            "logits": base64.b64encode(row.numpy().astype("<f4").tobytes()).decode("ascii"),
            "top": [[token, spell(before, token)] for token in best],
        }

    return await _answer(request, body, read)


async def continued(request: Request) -> Response:
    """The text up to a position and a token behind it, as the tokenizer writes them together."""
    body = await read_body(request, ContinuedBody)

    def read(prompt: Prompt) -> dict[str, object]:
        if prompt.run.config.objective != "causal":
            raise HttpError(400, f"{prompt.run.name} does not write on: it is no language model", "model")
        decode, position = prompt.tokenizer.decode, _position(prompt, body.position)
        ids = prompt.inputs[-1][0, : position + 1].tolist()
        if body.token >= prompt.tokenizer.vocab_size or (text := decode([*ids, body.token])) == decode(ids):
            raise HttpError(400, f"the token {body.token} adds nothing to the text", "token")
        if text.endswith(INCOMPLETE):
            raise HttpError(400, f"the token {body.token} is a part of a character that would not be complete", "token")
        return {"text": text}

    return await _answer(request, body, read)


async def attribution(request: Request) -> Response:
    """How much each token of the prompt adds to a logit."""
    body = await read_body(request, AttributionBody)

    def read(prompt: Prompt) -> dict[str, object]:
        position, vocab_size = _position(prompt, body.position), prompt.model.config.vocab_size
        for name, token in (("token", body.token), ("contrast", body.contrast)):
            if token is not None and token >= vocab_size:
                raise HttpError(400, f"`{name}` must be below {vocab_size}, the size of the vocabulary", name)
        is_pair = isinstance(prompt.model, EncoderDecoder)
        view = inspection.attribute(
            prompt.model,
            prompt.inputs[-1],
            position,
            source=prompt.inputs[0] if is_pair else None,
            target=body.token,
            contrast=body.contrast,
        )
        return view.named(prompt.labels, prompt.source_labels or ()).as_dict()

    return await _answer(request, body, read)


ROUTES = [
    Route("/studio/attention", attention, methods=["POST"]),
    Route("/studio/attention/weights", layer_weights, methods=["POST"]),
    Route("/studio/attention/cell", cell, methods=["POST"]),
    Route("/studio/predict", predict, methods=["POST"]),
    Route("/studio/logits", logits, methods=["POST"]),
    Route("/studio/continued", continued, methods=["POST"]),
    Route("/studio/attribution", attribution, methods=["POST"]),
]


async def _answer(request: Request, body: TextBody, read: Callable[[Prompt], dict[str, object]]) -> Response:
    notices = list[str]()
    content = await computed(request, body, read, notices.append)
    return JSONResponse({**content, "notices": notices})


async def computed(
    request: Request, body: TextBody, read: Callable[[Prompt], T], on_notice: Callable[[str], None] | None = None
) -> T:
    """What `read` makes of the prompt, on the model's own thread; `on_notice` hears where only a part is read."""
    runs: LoadedRuns = request.app.state.runs
    async with runs.use(body.model) as run:

        def compute() -> T:
            prompt = prompt_of(run.folder, run.model, run.tokenizers, body.text, body.target, on_notice)
            _refuse_large(prompt)
            with _ablated(run, body.without), enough_memory("give a shorter text"):
                return read(prompt)

        try:
            return await run.thread.call(compute)
        except ClearheadError as error:  # of a text, a head, a token: it is the person's own
            raise HttpError(400, str(error)) from None


@contextmanager
def _ablated(run: LoadedRun, heads: list[list[int | str]]) -> Iterator[None]:
    with ExitStack() as stack:
        if heads:
            stack.enter_context(
                inspection.intervene(run.model, without_heads(run.model, [_head(head) for head in heads]))
            )
        yield


def _head(entry: list[int | str]) -> tuple[AttentionKind, int, int]:
    kind, layer, head = entry
    kinds: dict[object, AttentionKind] = {"self": "self", "cross": "cross", "encoder": "encoder"}
    if kind not in kinds or not isinstance(layer, int) or not isinstance(head, int):
        raise HttpError(400, "`without` must be a list of [kind, layer, head]", "without", "invalid_value")
    return kinds[kind], layer, head


def _refuse_large(prompt: Prompt) -> None:
    sites = attention_sites(prompt.model)
    longest = max(ids.shape[-1] for ids in prompt.inputs)
    heads = sum(site.module.n_heads for site in sites)
    if heads * longest**2 > MOST_WEIGHTS:
        most = int((MOST_WEIGHTS / heads) ** 0.5)
        raise HttpError(
            400,
            f"a text of {longest:,} tokens is too long to look at all {heads:,} heads of this model; give one of at "
            f"most {most:,}",
            "text",
        )


def _position(prompt: Prompt, position: int) -> int:
    count = prompt.inputs[-1].shape[-1]
    if not -count <= position < count:
        raise HttpError(400, f"there is no position {position}: the text has {count} tokens", "position")
    return position % count


def _wall(prompt: Prompt, of: AttentionKind | None) -> dict[str, object]:
    view = attention_of(prompt, of)
    n_layers, n_heads = view.weights.shape[:2]
    small = thumbnails(view.weights, view.allowed)
    kinds = dict.fromkeys(site.kind for site in attention_sites(prompt.model))
    return {
        "of": view.kind,
        "kinds": list(kinds),
        "layers": n_layers,
        "heads": n_heads,
        "queries": list(view.queries),
        "keys": list(view.keys),
        "focus": [focus.as_dict() for focus in view.heads],
        "wall": {
            "rows": small.shape[2],
            "columns": small.shape[3],
            "weights": base64.b64encode(small.tobytes()).decode("ascii"),
        },
        "verdict": view.verdict,
    }


def thumbnails(weights: Array, allowed: Array) -> Array:
    """(L, H, T_q, T_k) as bytes (L, H, R, C), R and C at most `THUMBNAIL`: the largest weight of each part of a map.

    0 to 254 is from 0 to 1; `FORBIDDEN` where the mask forbids all of a part.
    """
    pooled = np.where(allowed, weights, -1.0)
    for axis in (2, 3):
        size = pooled.shape[axis]
        starts = np.unique(np.arange(min(size, THUMBNAIL)) * size // min(size, THUMBNAIL))
        pooled = np.maximum.reduceat(pooled, starts, axis=axis)
    small: Array = np.where(pooled < 0, FORBIDDEN, np.rint(np.clip(pooled, 0, 1) * 254)).astype(np.uint8)
    return small
