"""How long a connection is waited for. uvicorn has no deadline for what a client sends, nor for what it takes.

A connection is idle (nothing of a request is there), receives (until the whole request is there), or answers. It is
closed where it is idle or receives for too long, or does not take what it is sent.
"""

import asyncio
import sys
from typing import ClassVar, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from clearhead.config.serving import ServerConfig
from clearhead.server.http.errors import HttpError, error_response
from clearhead.server.http.gathered_transport import GatheredTransport
from clearhead.server.http.guard import SECURITY_HEADERS

FULL = HttpError(503, "the server has as many connections as it may have; try again", retry_after=1)


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with deadlines, a number of connections that it does not pass, and our errors."""

    limits: ClassVar[ServerConfig] = ServerConfig()

    _receiving: asyncio.TimerHandle | None = None
    _idle: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.gathered = GatheredTransport(transport, self.loop)
        super().connection_made(cast(asyncio.Transport, self.gathered))
        if len(self.connections) > self.limits.max_connections:
            self._refuse(FULL)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiving, self._idle = _stopped(self._receiving), _stopped(self._idle)
        self._sending = _stopped(self._sending)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn does not after an error

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        self.gathered.flush()  # so that what the system does not take has its deadline
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._sending = _stopped(self._sending)
        self._watch_sending()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more came after an answer."""
        if not self._unsent:  # else it is still being taken, which has a deadline of its own
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """What h11 could not read."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        sentence = "the request's head is too large" if status == 431 else "this is no HTTP request that can be read"
        self._refuse(HttpError(status, sentence))

    @property
    def _unsent(self) -> int:
        """Bytes that the system has not taken yet."""
        return self.transport.get_write_buffer_size()

    def _watch(self) -> None:
        """Start the deadline of the state that the connection is in, and stop the others'."""
        self._watch_sending()
        closing = self.transport.is_closing()
        state = self.conn.their_state
        has_begun = state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))
        if closing or not has_begun:
            self._receiving = _stopped(self._receiving)
        elif self._receiving is None:
            self._receiving = self.loop.call_later(self.limits.receive_seconds, self._give_up_receiving)
        if closing or has_begun or state is not h11.IDLE:
            self._idle = _stopped(self._idle)
        elif self._idle is None and self.timeout_keep_alive_task is None:
            self._idle = self.loop.call_later(self.limits.idle_seconds, self._close)

    def _watch_sending(self) -> None:
        answered = self.transport.is_closing() or self.cycle is None or self.cycle.response_complete
        if self._sending is None and self._unsent and (answered or self.flow.write_paused):
            self._sending = self.loop.call_later(self.limits.send_seconds, self._give_up_sending)

    def _give_up_receiving(self) -> None:
        self._receiving = None
        seconds = f"{self.limits.receive_seconds:g} seconds"
        self._refuse(HttpError(408, f"the whole request did not arrive within {seconds}"))

    def _give_up_sending(self) -> None:
        self._sending = None
        if self._unsent:
            self.transport.abort()

    def _refuse(self, error: HttpError) -> None:
        """Answer, unless the application has begun to, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            is_answered = self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()  # the application waits for the rest of a body
        else:
            is_answered = False
        if not is_answered and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = error_response(error, {**SECURITY_HEADERS, "Connection": "close"})
            reply = h11.Response(status_code=error.status, headers=response.raw_headers)
            for event in (reply, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self._close()

    def _close(self) -> None:
        self.transport.close()  # after what is still to be sent, which has its deadline
        self._watch()


def limited_protocol(config: ServerConfig) -> type[LimitedProtocol]:
    """The protocol with the limits of a server, as uvicorn's `http` takes it."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": config})


def _stopped(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None
