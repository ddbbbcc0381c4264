"""Who may ask: what is checked before any route, and the headers that every answer carries.

A page of any web site can make its reader's browser send requests to this machine. By DNS rebinding it can even read
the answers, under a name of its own: so the Host header is compared with the names that this server has, and the Origin
header with the Host. Nothing is ever allowed to other origins (CORS).
"""

import hmac
import re
from ipaddress import ip_address
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clearhead.config.serving import ServerConfig, is_loopback
from clearhead.server.http.errors import HttpError, error_response

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
OPEN_PATHS = ("/", "/healthz")  # they hold nothing of anybody: no token is needed
OPENING = "/open/"  # what stands behind it works once, and leads to a page with its token
OPEN_FOLDERS = ("/page/", "/studio/page/", OPENING)
FRAMES = "/frame/"  # pages that a browser loads by itself, without the header: the key in their address opens them
ADDRESS = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[^:\[\]/@\s]+)(:[0-9]{0,5})?")
ANY_ADDRESS = ("0.0.0.0", "::")


class Guard:
    """ASGI middleware around all but the metering: also what goes wrong in the application gets its headers."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app, self.token, self.max_header_bytes = app, config.token, config.max_header_bytes
        self.allowed = {_canonical(name) for name in config.allowed_hosts}
        self.named = {*self.allowed, _canonical(config.host)} - set(ANY_ADDRESS)
        self.is_everywhere = _canonical(config.host) in ANY_ADDRESS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or refuse it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)  # a page that is complete in itself brings a stricter policy
            await send(message)

        try:
            self._check(scope)
        except HttpError as error:
            await error_response(error, _headers_of(error))(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if sum(len(name) + len(value) + 4 for name, value in headers) > self.max_header_bytes:
            raise HttpError(431, "the request's head is too large")  # one that came at once, which h11 lets through
        host = _only(headers, b"host")
        if host is None:
            raise HttpError(400, "a request needs exactly one Host header")
        if not self._is_named(host):
            raise HttpError(
                403, "the Host header names another server; --allowed-hosts adds a name to those that this one has"
            )
        if any(name == b"origin" for name, _ in headers) and not self._is_own(_only(headers, b"origin"), host):
            raise HttpError(403, "pages of other origins may not use this server")
        if scope["method"] == "OPTIONS":
            raise HttpError(405, "no other origin is allowed to use this server, so there is nothing to ask for")
        path = scope["path"]
        if self.token is None or path in OPEN_PATHS or path.startswith(OPEN_FOLDERS):
            return
        query: bytes = scope["query_string"]
        if path.startswith(FRAMES) and hmac.compare_digest(query, f"key={_key(path, self.token)}".encode()):
            return
        self._check_token(_only(headers, b"authorization") or "")

    def _is_named(self, address: str) -> bool:
        """Whether an address, with any port, is one of this server's."""
        match = ADDRESS.fullmatch(address.lower())
        if match is None:
            return False
        host = _canonical(match["host"])
        # No name of a foreign site is a numerical address: where all of the machine's serve, any of them is right.
        return is_loopback(host) or host in self.named or (self.is_everywhere and _is_numerical(host))

    def _is_own(self, origin: str | None, host: str) -> bool:
        """Whether an origin is the page of this server, or of one that was named, behind whatever proxy."""
        scheme, separator, address = (origin or "").lower().partition("://")
        if not separator or scheme not in ("http", "https"):
            return False
        match = ADDRESS.fullmatch(address)
        return match is not None and (address == host.lower() or _canonical(match["host"]) in self.allowed)

    def _check_token(self, authorization: str) -> None:
        scheme, _, token = authorization.partition(" ")
        right = hmac.compare_digest(token.strip().encode("latin-1"), (self.token or "").encode())
        if scheme.lower() != "bearer" or not right:
            raise HttpError(
                401,
                "this server needs its token: send the header 'Authorization: Bearer TOKEN'",
                code="invalid_api_key",
            )


def frame_address(path: str, token: str | None) -> str:
    """The address of a page below `FRAMES`, for those who know the token: its key opens this path and nothing else."""
    return quote(path) if token is None else f"{quote(path)}?key={_key(path, token)}"


def _key(path: str, token: str) -> str:
    return hmac.new(token.encode(), path.encode(), "sha256").hexdigest()


def _headers_of(error: HttpError) -> dict[str, str]:
    match error.status:
        case 401:
            return {"WWW-Authenticate": "Bearer"}
        case 405:
            return {"Allow": "GET, HEAD, POST"}
    return {}


def _only(headers: list[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The header, unless there are none or several."""
    values = [value for other, value in headers if other == name]
    return values[0].decode("latin-1") if len(values) == 1 else None


def _canonical(host: str) -> str:
    """A host name or an address as it is compared: `[::0:1]` is `::1`, `A.example.` is `a.example`."""
    host = host.lower().strip("[]").rstrip(".")
    return str(ip_address(host)) if _is_numerical(host) else host


def _is_numerical(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
