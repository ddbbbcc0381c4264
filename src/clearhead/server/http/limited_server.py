"""uvicorn with the limits of a ServerConfig, and with signals that end it and are reported, not raised again."""

import logging
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from clearhead.config.serving import ServerConfig
from clearhead.server.http.protocol import limited_protocol


class LimitedServer(uvicorn.Server):
    """A server of one application.

    Args:
        app: the application.
        config: its limits; the address is that of the sockets with which it is run.
        on_ready: called as soon as requests are answered.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, on_ready: Callable[[], None] | None = None) -> None:
        super().__init__(_uvicorn_config(app, config))
        self.on_ready = on_ready
        self.signals: list[int] = []
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # below are sentences about each malformed request

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        if self.on_ready is not None:
            self.on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """While it lasts, SIGINT and SIGTERM end the server; `signals` has those that came."""
        with super().capture_signals():
            yield
            self.signals, self._captured_signals = self._captured_signals, []


def _uvicorn_config(app: ASGIApp, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=limited_protocol(config),
        ws="none",
        loop="auto",  # uvloop where it is installed
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=math.ceil(config.idle_seconds),
        timeout_graceful_shutdown=math.ceil(config.shutdown_seconds),
        h11_max_incomplete_event_size=config.max_header_bytes,
    )
