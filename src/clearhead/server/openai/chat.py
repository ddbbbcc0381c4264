"""POST /v1/chat/completions: the answer to the last message of a chat, whole or as it comes."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clearhead.config.serving import ServerConfig
from clearhead.data import ChatMessage, ChatTemplateError, LongChatError
from clearhead.errors import DataError, UsageError
from clearhead.inference import TokenLogprobs
from clearhead.server.http.bodies import RequestBody, read_body
from clearhead.server.http.errors import HttpError
from clearhead.server.http.events import event_stream, while_connected
from clearhead.server.http.large_json import large_response
from clearhead.server.loaded_run import LoadedRun
from clearhead.server.loaded_runs import LoadedRuns
from clearhead.server.openai.fields import TextFields, head, unwritten, usage
from clearhead.server.text_batch import TextRequest
from clearhead.server.text_progress import TextEvent
from clearhead.server.texts import TextReader

MOST_TOP_LOGPROBS = 20  # as OpenAI has it
TOOLS = ("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call")
Json = Mapping[str, object]


class TextPart(RequestBody):
    """A part of a message; all are texts."""

    type: Literal["text"]
    text: str


class MessageBody(RequestBody):
    """A message. What a client sends back of an answer that was none stays without a value."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    refusal: None = None
    annotations: None = None
    audio: None = None
    tool_calls: None = None
    function_call: None = None

    @property
    def message(self) -> ChatMessage:
        """As templates have it."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return ChatMessage("system" if self.role == "developer" else self.role, content)


class ChatBody(TextFields):
    """The fields of a chat completion, as OpenAI has them; `store` and `metadata` are not looked at."""

    messages: Annotated[list[MessageBody], Field(fail_fast=True, min_length=1)]
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_TOP_LOGPROBS)
    store: bool | None = None
    metadata: dict[str, str] | None = Field(None, max_length=64)
    tools: object = None
    tool_choice: object = None
    parallel_tool_calls: object = None
    functions: object = None
    function_call: object = None


@dataclass(frozen=True)
class _PreparedChat:
    """A request that has been read: what is answered, and how."""

    run: LoadedRun
    body: ChatBody
    texts: TextRequest
    ends: frozenset[int]

    def usage(self, reader: TextReader) -> dict[str, object]:
        """How many tokens there were; the prompt is read once for all answers."""
        return usage(len(self.texts.prompts[0]), reader.n_tokens)

    def logprobs(self, event: TextEvent) -> dict[str, object] | None:
        """Of the tokens of a piece, without the one that ended it."""
        if not self.body.logprobs:
            return None
        token_text, pairs = self.run.token_text, zip(event.tokens, event.logprobs, strict=True)
        return {
            "content": [_logprob(token_text, token, own) for token, own in pairs if token not in self.ends],
            "refusal": None,
        }


async def chat_completions(request: Request) -> Response:
    """Answer the last message."""
    body = await read_body(request, ChatBody)
    tool = next((name for name in TOOLS if getattr(body, name) is not None), None)
    if tool:
        raise HttpError(400, f"`{tool}` is not supported: no model here calls tools; leave it out", tool, "unsupported")
    if body.top_logprobs is not None and not body.logprobs:
        raise HttpError(400, "`top_logprobs` needs `logprobs`: true", "top_logprobs", "invalid_value")
    if body.stream:
        return event_stream(request, _events(request, body))
    return await while_connected(request, _whole(request, body))


ROUTES = [Route("/v1/chat/completions", chat_completions, methods=["POST"])]


async def _prepare(run: LoadedRun, body: ChatBody, config: ServerConfig) -> _PreparedChat:
    run.queue()  # before the work, not after it
    prompt, end = await asyncio.to_thread(_encode, run, [message.message for message in body.messages])
    limits = [number for number in (body.max_completion_tokens, body.max_tokens) if number is not None]
    room = config.max_tokens if run.context is None else max(1, run.context - len(prompt))
    sampling = body.sampling(config, min(limits) if limits else min(room, config.max_tokens))
    ends = frozenset(i for i in (end, run.tokenizer.end_of_document) if i is not None)
    options = body.options(
        run.model.config.vocab_size,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        stop_ids=[*ends],
        constraint=await run.constraint(body.compile_form),
    )
    request = TextRequest([prompt] * sampling.num_samples, sampling, options, param="messages")
    return _PreparedChat(run, body, request, ends)


def _encode(run: LoadedRun, messages: Sequence[ChatMessage]) -> tuple[list[int], int | None]:
    """The ids of a chat, and the one that ends a turn: both take a while, and neither is for the event loop."""
    try:
        encoder = run.chat_encoder
        return encoder.encode(messages, context=run.context), encoder.end_of_turn
    except LongChatError as error:
        raise HttpError(400, str(error), "messages", "context_length_exceeded") from None
    except ChatTemplateError as error:  # the run's fault, whoever asks what
        raise HttpError(500, str(error)) from None
    except (UsageError, DataError) as error:
        raise HttpError(400, str(error), "messages", "invalid_value") from None


async def _events(request: Request, body: ChatBody) -> AsyncGenerator[dict[str, object], None]:
    runs: LoadedRuns = request.app.state.runs
    async with runs.use(body.model) as run:
        work = await _prepare(run, body, request.app.state.config)
        answer = head("chatcmpl", "chat.completion.chunk", run.name) | ({"usage": None} if body.wants_usage else {})
        with run.queue().submit(work.texts) as reader:
            begun = set[int]()
            async for event in reader:
                if event.index not in begun:  # not before, so that the first event of a stream says when a text begins
                    begun.add(event.index)
                    yield answer | {"choices": [_delta(event.index, {"role": "assistant", "content": ""})]}
                if event.text or event.tokens:
                    delta = _delta(event.index, {"content": event.text})
                    yield answer | {"choices": [{**delta, "logprobs": work.logprobs(event)}]}
                if event.finish_reason:
                    yield answer | {"choices": [_delta(event.index, {}, event.finish_reason)]}
            if body.wants_usage:
                yield answer | {"choices": [], "usage": work.usage(reader)}


async def _whole(request: Request, body: ChatBody) -> Response:
    runs: LoadedRuns = request.app.state.runs
    async with runs.use(body.model) as run:
        work = await _prepare(run, body, request.app.state.config)
        with run.queue().submit(work.texts) as reader:
            events = await reader.whole()

        def build() -> dict[str, object]:
            answer = head("chatcmpl", "chat.completion", run.name)
            return answer | {"choices": [_choice(work, event) for event in events], "usage": work.usage(reader)}

        return await large_response(build) if body.logprobs else JSONResponse(build())


def _choice(work: _PreparedChat, event: TextEvent) -> dict[str, object]:
    """A whole answer."""
    return {
        "index": event.index,
        "message": {"role": "assistant", "content": event.text, "refusal": None},
        "logprobs": work.logprobs(event),
        "finish_reason": event.finish_reason,
    }


def _delta(index: int, delta: Json, finish_reason: str | None = None) -> dict[str, object]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _logprob(token_text: Callable[[int], str], token: int, logprob: TokenLogprobs) -> dict[str, object]:
    top = [_token(token_text, other, value) for other, value in logprob.top]
    return {**_token(token_text, token, logprob.logprob), "top_logprobs": top}


def _token(token_text: Callable[[int], str], token: int, logprob: float) -> dict[str, object]:
    """A token with its bytes; of half a character they are not known."""
    text = token_text(token)
    known = None if text == unwritten(token) else list(text.encode("utf-8", "replace"))
    return {"token": text, "logprob": logprob, "bytes": known}
