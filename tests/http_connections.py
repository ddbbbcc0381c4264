"""Clients that are slow, silent or do not read, and a server with short deadlines for them."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from starlette.types import ASGIApp

from clearhead.config.serving import ServerConfig
from clearhead.server.http.limited_server import LimitedServer

PATIENCE = 60  # seconds


@contextmanager
def serving(app: ASGIApp, config: ServerConfig, loop: Literal["auto", "asyncio"] = "auto") -> Iterator[int]:
    """The port of a real server of an application, on that event loop."""
    listener = socket.create_server(("127.0.0.1", 0))
    is_ready = threading.Event()
    server = LimitedServer(app, config, is_ready.set)
    server.config.loop = loop
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        assert is_ready.wait(PATIENCE), "the server does not start"
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
        assert not thread.is_alive(), "the server does not stop"


def connect(port: int) -> socket.socket:
    """A connection whose every wait is limited."""
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def until_closed(connection: socket.socket) -> bytes:
    """What still comes until the other side closes."""
    content = bytearray()
    end = time.monotonic() + PATIENCE
    try:
        while piece := connection.recv(1 << 16):
            content += piece
            assert time.monotonic() < end, "the connection stays open"
    except ConnectionError:
        pass
    return bytes(content)


def ask(port: int, path: str = "/healthz") -> bytes:
    """The answer to a request on a connection of its own."""
    with connect(port) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return until_closed(connection)
