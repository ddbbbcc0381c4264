"""POST /v1/completions: texts after prompts, whole or as they come."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clearhead.config.serving import ServerConfig
from clearhead.inference import TokenLogprobs
from clearhead.server.http.bodies import read_body
from clearhead.server.http.errors import HttpError
from clearhead.server.http.events import Event, event_stream, while_connected
from clearhead.server.http.large_json import encoded_aside, large_response
from clearhead.server.loaded_run import LoadedRun
from clearhead.server.loaded_runs import LoadedRuns
from clearhead.server.openai.fields import Prompts, TextFields, encode_prompts, head, text_offsets, usage
from clearhead.server.text_batch import TextRequest
from clearhead.server.text_progress import TextEvent
from clearhead.server.texts import TextReader

DEFAULT_TOKENS = 16  # as OpenAI has it
MOST_LOGPROBS = 5


class CompletionBody(TextFields):
    """The fields of a completion, as OpenAI has them."""

    prompt: Prompts = ""
    max_tokens: int | None = Field(None, ge=0)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    best_of: int | None = Field(None, ge=1)
    suffix: str | None = None


@dataclass
class Logprobs:
    """The log-probabilities of tokens in OpenAI's four columns."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add(
        self,
        token_text: Callable[[int], str],
        ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs | None],
        offsets: Sequence[int],
    ) -> None:
        """Add tokens; of one without a log-probability only its text."""
        for token, logprob, offset in zip(ids, logprobs, offsets, strict=True):
            text = token_text(token)
            self.tokens.append(text)
            self.text_offset.append(offset)
            self.token_logprobs.append(None if logprob is None else logprob.logprob)
            self.top_logprobs.append(None if logprob is None else _top(token_text, text, logprob))


@dataclass(frozen=True)
class _Completion:
    """A request that has been read: what is written, and after what."""

    run: LoadedRun
    body: CompletionBody
    prompts: Sequence[tuple[Sequence[int], str]]  # of each prompt: ids and text
    texts: TextRequest

    def start_of(self, index: int) -> tuple[Sequence[int], str]:
        """The prompt of one of the texts."""
        return self.prompts[index // self.texts.sampling.num_samples]

    def answer(self) -> dict[str, object]:
        """What every part of the answer begins with."""
        return head("cmpl", "text_completion", self.run.name)

    def usage(self, reader: TextReader) -> dict[str, object]:
        """How many tokens there were."""
        return usage(sum(len(ids) for ids, _ in self.prompts), reader.n_tokens)


async def completions(request: Request) -> Response:
    """Write texts."""
    body = await read_body(request, CompletionBody)
    _refuse_what_is_not_built(body)
    if body.stream:
        return event_stream(request, _events(request, body))
    return await while_connected(request, _whole(request, body))


ROUTES = [Route("/v1/completions", completions, methods=["POST"])]


def _refuse_what_is_not_built(body: CompletionBody) -> None:
    if body.best_of is not None and body.best_of > 1:
        raise HttpError(400, "`best_of` above 1 is not supported; ask for `n` texts", "best_of", "unsupported")
    if body.suffix:
        raise HttpError(400, "`suffix` is not supported: no model here writes towards one", "suffix", "unsupported")


async def _prepare(run: LoadedRun, body: CompletionBody, config: ServerConfig) -> _Completion:
    run.queue()  # before the work, not after it
    vocab_size = run.model.config.vocab_size
    max_tokens = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    sampling = body.sampling(config, max_tokens)
    options = body.options(
        vocab_size,
        constraint=await run.constraint(body.compile_form),
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        prompt_only=max_tokens == 0,
    )
    prompts = await encode_prompts(body.prompt, run.tokenizer, vocab_size, config, "prompt")
    several = [ids for ids, _ in prompts for _ in range(sampling.num_samples)]
    return _Completion(run, body, prompts, TextRequest(several, sampling, options))


async def _events(request: Request, body: CompletionBody) -> AsyncGenerator[Event, None]:
    runs: LoadedRuns = request.app.state.runs
    async with runs.use(body.model) as run:
        work = await _prepare(run, body, request.app.state.config)
        answer = work.answer() | ({"usage": None} if body.wants_usage else {})
        begun = set[int]()
        with run.queue().submit(work.texts) as reader:
            async for event in reader:
                is_first = event.index not in begun
                build = partial(_part, work, answer, event, is_first=is_first)
                # The texts and log-probabilities of thousands of tokens are made and encoded elsewhere.
                yield await encoded_aside(build) if is_first and event.prompt_logprobs is not None else build()
                begun.add(event.index)
            if body.wants_usage:
                yield answer | {"choices": [], "usage": work.usage(reader)}


async def _whole(request: Request, body: CompletionBody) -> Response:
    runs: LoadedRuns = request.app.state.runs
    async with runs.use(body.model) as run:
        work = await _prepare(run, body, request.app.state.config)
        with run.queue().submit(work.texts) as reader:
            events = await reader.whole()

        def build() -> dict[str, object]:
            choices = [_choice(work, event, is_first=True) for event in events]
            return work.answer() | {"choices": choices, "usage": work.usage(reader)}

        return JSONResponse(build()) if body.logprobs is None else await large_response(build)


def _part(work: _Completion, answer: dict[str, object], event: TextEvent, *, is_first: bool) -> dict[str, object]:
    """One event of the stream."""
    return answer | {"choices": [_choice(work, event, is_first=is_first)]}


def _choice(work: _Completion, event: TextEvent, *, is_first: bool) -> dict[str, object]:
    """One text, or its next piece; where the prompt is echoed, the first piece begins with it."""
    body, token_text = work.body, work.run.token_text
    ids, prompt = work.start_of(event.index)
    columns = Logprobs()
    if body.logprobs is not None:
        start = len(prompt) if body.echo else 0
        if body.echo and is_first:
            offsets = text_offsets(work.run.tokenizer, ids)
            columns.add(token_text, ids, [None, *(event.prompt_logprobs or ())], offsets)
        columns.add(token_text, event.tokens, event.logprobs, [start + offset for offset in event.offsets])
    return {
        "index": event.index,
        "text": (prompt if body.echo and is_first else "") + event.text,
        "logprobs": None if body.logprobs is None else vars(columns),
        "finish_reason": event.finish_reason,
    }


def _top(token_text: Callable[[int], str], text: str, logprob: TokenLogprobs) -> dict[str, float]:
    """The likeliest tokens and the one that stands there; of two with the same text the likelier."""
    top = dict[str, float]()
    for token, value in logprob.top:
        top.setdefault(token_text(token), value)
    top.setdefault(text, logprob.logprob)
    return top
