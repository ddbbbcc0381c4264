"""A real uvicorn in a thread, on a port that is free."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from clearhead.config.serving import ServerConfig
from clearhead.server import create_app
from clearhead.workflows.runs.folder import RunFolder

PATIENCE = 60  # seconds


@contextmanager
def running(runs: Sequence[RunFolder], config: ServerConfig | None = None) -> Iterator[str]:
    """The address of a server of these runs."""
    with running_app(create_app(runs, config)) as url:
        yield url


@contextmanager
def running_app(app: ASGIApp) -> Iterator[str]:
    """The address of an application."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        end = time.monotonic() + PATIENCE
        while not server.started:
            assert thread.is_alive(), "the server does not start"
            assert time.monotonic() < end, "the server does not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=PATIENCE)
        listener.close()
        assert not thread.is_alive(), "the server does not stop"
