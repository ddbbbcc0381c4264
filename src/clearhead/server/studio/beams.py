"""/studio/beams: how the search for a translation went, hypothesis by hypothesis."""

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clearhead.config import TranslationConfig
from clearhead.errors import ClearheadError
from clearhead.inference.beam_tree import BeamTree, beam_tree
from clearhead.inference.translation import source_rows
from clearhead.models import EncoderDecoder
from clearhead.server.http.bodies import RequestBody, read_body
from clearhead.server.http.errors import HttpError
from clearhead.server.loaded_run import LoadedRun
from clearhead.server.loaded_runs import LoadedRuns
from clearhead.workflows.prompts import END

MOST_BEAMS = 16
MOST_TOKENS = 256  # of a translation, so that its tree can be drawn


class BeamsBody(RequestBody):
    """A sentence, and how wide the search for its translation is."""

    model: str | None = Field(None, max_length=512)
    text: str = Field(max_length=20_000)
    beam_size: int = Field(5, ge=1, le=MOST_BEAMS)


async def beams(request: Request) -> Response:
    """The tree of the search, and all its translations: the page ranks them by the length penalty."""
    body = await read_body(request, BeamsBody)
    runs: LoadedRuns = request.app.state.runs
    async with runs.use(body.model) as run:
        try:
            return JSONResponse(await run.thread.call(lambda: _searched(run, body)))
        except ClearheadError as error:
            raise HttpError(400, str(error)) from None


ROUTES = [Route("/studio/beams", beams, methods=["POST"])]


def _searched(run: LoadedRun, body: BeamsBody) -> dict[str, object]:
    model, (source_tokenizer, tokenizer) = run.model, run.tokenizers
    if not isinstance(model, EncoderDecoder):
        raise HttpError(400, f"the model {run.name} is no translator", "model")
    if not body.text.strip():
        raise HttpError(400, "there is no sentence to translate", "text")
    end = tokenizer.end_of_document
    assert end is not None, "a translator that was loaded has one"
    source = source_rows(source_tokenizer, [body.text], run.block_size)[0]
    longest = min(MOST_TOKENS, 2 * len(source) + 10)
    config = TranslationConfig(beam_size=body.beam_size, max_new_tokens=longest, engine="eager")
    tree = beam_tree(model, source, config, end=end)
    return {
        "beam_size": body.beam_size,
        "nodes": [
            {"step": node.step, "parent": node.parent, "log_prob": node.log_prob, "state": node.state, "text": text}
            for node, text in zip(tree.nodes, _texts(run, tree), strict=True)
        ],
        "translations": [
            {"node": index, "text": tokenizer.decode(hypothesis.ids), "length": tree.nodes[index].step + 1}
            for index, hypothesis in tree.ranked(0)
        ],
    }


def _texts(run: LoadedRun, tree: BeamTree) -> list[str]:
    return [END if node.state == "finished" else run.token_text(node.token) for node in tree.nodes]
