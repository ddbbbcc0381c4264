"""A server from its start to its end: the address it listens on, the signals it hears."""

import errno
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from clearhead.config.serving import ServerConfig
from clearhead.errors import DataError, UsageError
from clearhead.server.first_calls import curl_line, openai_lines
from clearhead.workflows.runs.folder import RunFolder

if TYPE_CHECKING:
    from starlette.types import ASGIApp

NEEDED = ("starlette", "uvicorn")
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # an address to listen on -> where this machine finds it


@dataclass(frozen=True)
class Listening:
    """What is served, and where."""

    url: str
    models: tuple[str, ...]
    needs_token: bool
    curl: str  # a command that uses the first model
    openai: tuple[str, ...]  # lines of Python that do the same; none where OpenAI's client has nothing for the model


def serve(
    runs: Sequence[RunFolder],
    config: ServerConfig | None = None,
    *,
    on_ready: Callable[[Listening], None] = lambda listening: None,
) -> signal.Signals | None:
    """Serve runs over HTTP until SIGINT or SIGTERM, which it returns. Called in the main thread.

    Args:
        runs: to serve, by their names; the first is the default.
        config: the address and the limits.
        on_ready: is told where, as soon as requests are answered.

    Raises:
        UsageError: the extra is not installed, the address is not to be had, or others could use it without a token.
        DataError: a run cannot be used.
    """
    config = config or ServerConfig()
    refuse_missing("serving")
    kinds = [_kind(run) for run in runs]
    if not kinds:
        raise UsageError("there is no run to serve; name at least one")
    if not config.is_local and config.token is None:
        raise UsageError(
            f"`host` {config.host} can be reached by others, so the server needs a `token` that they do not know; set "
            "the environment variable CLEARHEAD_TOKEN"
        )
    from clearhead.server.app import create_app

    example = "chat" if runs[0].has_chat_template else kinds[0]

    def ready(url: str) -> None:
        needs_token = config.token is not None
        on_ready(
            Listening(
                url,
                tuple(run.name for run in runs),
                needs_token,
                curl_line(url, runs[0].name, example, needs_token=needs_token),
                openai_lines(url, runs[0].name, example, needs_token=needs_token),
            )
        )

    return listen(lambda: create_app(runs, config), config, ready)


def listen(
    make_app: Callable[[], "ASGIApp"], config: ServerConfig, on_ready: Callable[[str], None]
) -> signal.Signals | None:
    """Answer requests until SIGINT or SIGTERM, which it returns. Called in the main thread.

    Args:
        make_app: the application; called once the address is had.
        config: the address and the limits.
        on_ready: is told the URL, as soon as requests are answered.

    Raises:
        UsageError: the address is not to be had.
    """
    from clearhead.server.http.limited_server import LimitedServer

    with closing(_listener(config)) as listener:
        server = LimitedServer(make_app(), config, partial(on_ready, _url(listener)))
        server.run(sockets=[listener])
    return next((signal.Signals(number) for number in server.signals), None)


def refuse_missing(what: str) -> None:
    """Refuse what needs the extra where it is not installed.

    Raises:
        UsageError: it is not.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"{what} needs {' and '.join(missing)}; install with: pip install 'clearhead[serve]'")


def _kind(run: RunFolder) -> str:
    """The objective of a run.

    Raises:
        DataError: it cannot be served.
    """
    if not run.has_model:
        raise DataError(f"{run.folder} has no model yet; its training has saved none")
    return run.config.objective


def _listener(config: ServerConfig) -> socket.socket:
    """A socket on the address.

    Raises:
        UsageError: it cannot be had.
    """
    host = config.host.strip("[]")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, config.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise UsageError(_refusal(error, config)) from None


def _refusal(error: OSError, config: ServerConfig) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"`port` {config.port} is in use; take another one, or 0 for any that is free"
    if error.errno == errno.EACCES:
        return f"`port` {config.port} is for administrators; take one above 1023"
    return f"`host` {config.host} is no address of this machine"


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = EVERYWHERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
