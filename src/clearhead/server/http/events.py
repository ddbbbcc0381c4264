"""A response that is sent while it is made: server-sent events, and what a request waits for while its client is there.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from clearhead.server.http.errors import error_body, log_failure
from clearhead.server.http.large_json import ENCODER

Event = Mapping[str, object] | bytes  # the bytes: JSON in ASCII already
T = TypeVar("T")

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second: for nginx in front of us
TURN = 0.005  # seconds after which the others have theirs
DONE = b"data: [DONE]\n\n"


def event_stream(request: Request, events: AsyncGenerator[Event, None], *, done: bool = True) -> Response:
    """A stream of JSON objects as server-sent events.

    - An error before the first event is answered with its own status; after it, as one event `{"error": ...}`, with
      which the stream ends.
    - A client that reads slowly holds up `events`, at its `yield`, and nobody else. Neither do events that are all
      there already.
    - When the client goes, `events` is closed where it stands. What it does then (`finally`) must not await.

    Args:
        request: which is answered.
        events: JSON objects, no NaN, no infinity. It is always closed.
        done: whether `data: [DONE]` comes last, as OpenAI has it.
    """
    return _EventStream(events, done=done)


class _EventStream(StreamingResponse):
    def __init__(self, events: AsyncGenerator[Event, None], *, done: bool) -> None:
        self._events, self._done = events, done
        super().__init__((), headers=HEADERS, media_type="text/event-stream")

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            event = await anext(events, None)  # what it raises is answered with a status of its own
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            last = DONE if self._done else b""
            try:
                turn = time.monotonic()
                while event is not None:
                    await send(_body(encoded(event)))
                    if time.monotonic() - turn > TURN:  # neither line need suspend, so others would wait
                        await asyncio.sleep(0)
                        turn = time.monotonic()
                    event = await anext(events, None)
            except Exception as error:
                log_failure(error)
                last = encoded(error_body(error))
            await send(_body(last, more=False))


def encoded(event: Event) -> bytes:
    """One event. All of it is ASCII: some clients end a line at each of U+0085, U+2028 and U+2029."""
    content = event if isinstance(event, bytes) else ENCODER.encode(event).encode("ascii")
    return b"data: " + content + b"\n\n"


def _body(content: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


async def while_connected(request: Request, work: Coroutine[object, object, T]) -> T:
    """What `work` returns; it is cancelled when the client goes. The request's body must have been read.

    Raises:
        ClientDisconnect: the client went.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
