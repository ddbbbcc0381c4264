"""The studio from its start to its end: its address, the token in it, and the browser."""

import secrets
import signal
import webbrowser
from collections.abc import Callable
from threading import Thread
from urllib.parse import urlencode

from clearhead.config.serving import ServerConfig
from clearhead.server.serving import listen, refuse_missing

TOKEN_BYTES = 24
PASTED = 64 * 2**20  # bytes of a text that is pasted to train on


def open_studio(
    run: str | None = None,
    config: ServerConfig | None = None,
    *,
    code: str | None = None,
    browser: bool = True,
    on_ready: Callable[[str], None] = lambda url: None,
) -> signal.Signals | None:
    """Open the studio of the runs under `runs`, until SIGINT or SIGTERM, which it returns. Called in the main thread.

    Args:
        run: the name of the one that is shown first; the newest without it.
        config: the address and the limits. Without a token, one is drawn.
        code: a model to examine, such as 'model.py:build'; what the doctor says of it is shown first.
        browser: whether to show it in this machine's browser.
        on_ready: is told the address, with the token, as soon as requests are answered.

    Raises:
        UsageError: the extra is not installed, or the address is unavailable.
    """
    refuse_missing("the studio")
    config = config or ServerConfig()
    token = config.token or secrets.token_urlsafe(TOKEN_BYTES)
    limits = {"token": token, "max_body_bytes": max(config.max_body_bytes, PASTED)}
    config = config.model_copy(update=limits)
    from clearhead.server.http.guard import OPENING
    from clearhead.server.studio.app import create_studio

    # What stands behind # is never sent: the page reads it, keeps the token and takes it out of the address.
    shown = {
        "token": token,
        **({} if run is None else {"run": run}),
        **({"screen": "doctor", "code": "1"} if code else {}),
    }
    view = f"/#{urlencode(shown)}"
    key = secrets.token_urlsafe(TOKEN_BYTES)

    def ready(url: str) -> None:
        on_ready(f"{url}{view}")
        if browser:  # whose arguments other users of the machine can read: this address works once
            Thread(target=webbrowser.open, args=(f"{url}{OPENING}{key}",), daemon=True).start()

    return listen(lambda: create_studio(config, {key: view} if browser else {}, code), config, ready)
