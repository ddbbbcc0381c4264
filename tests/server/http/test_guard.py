"""Who may ask, and what every answer carries."""

import hmac

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from clearhead.config.serving import ServerConfig
from clearhead.server import app, create_app
from clearhead.server.http import guard

TOKEN = "correct-horse-battery"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def secret(request: Request) -> Response:
    return JSONResponse({"secret": 1})


async def fails(request: Request) -> Response:
    raise ZeroDivisionError("/home/somebody")


def client_of(config: ServerConfig | None = None) -> TestClient:
    return TestClient(create_app([], config), base_url="http://localhost:8000", raise_server_exceptions=False)


@pytest.fixture(autouse=True)
def routes(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [Route("/secret", secret, methods=["GET", "POST"]), Route("/fails", fails)]
    monkeypatch.setattr(app, "ROUTES", [*app.ROUTES, *ours])


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "localhost.:1", "127.0.0.1:9", "127.9.9.9", "[::1]:8000", "[0:0::1]", "localhost:"],
)
def test_this_machine_has_these_names(host: str) -> None:
    assert client_of().get("/secret", headers={"Host": host}).json() == {"secret": 1}


HOSTILE_HOSTS = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example:8000",
    "localhost@evil.example",
    "evil.example/localhost",
    "0.0.0.0",
    "192.168.0.1",
    "[::]",
    "[::1",
    "::1",
    "localhost:8000:8000",
    "localhost:http",
    "localhost, evil.example",
    "",
    "\xff",
]


@pytest.mark.sampled
@pytest.mark.parametrize("path", ["/", "/healthz", "/page/x.js", "/secret"])
@pytest.mark.parametrize("host", HOSTILE_HOSTS)
def test_a_foreign_name_is_refused_everywhere(host: str, path: str) -> None:
    response = client_of().get(path, headers={b"Host": host.encode("latin-1")})
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "permission_error"
    assert "example" not in response.text


def test_several_or_no_host_headers_are_refused() -> None:
    response = client_of().get("/secret", headers=[("Host", "localhost"), ("Host", "evil.example")])
    assert response.status_code == 400


def test_names_can_be_added_and_the_configured_host_is_one() -> None:
    client = client_of(ServerConfig(host="box.lan", allowed_hosts=("models.example", "10.0.0.7"), token=TOKEN))
    for host in ("box.lan:8000", "Models.Example", "10.0.0.7:1", "127.0.0.1"):
        assert client.get("/secret", headers={"Host": host, **BEARER}).status_code == 200, host
    assert client.get("/secret", headers={"Host": "10.0.0.8", **BEARER}).status_code == 403


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
def test_a_server_on_all_addresses_has_every_address_but_no_other_name(everywhere: str) -> None:
    client = client_of(ServerConfig(host=everywhere, token=TOKEN))
    for host, status in (("192.168.0.1:8000", 200), ("[fe80::1]", 200), ("evil.example", 403)):
        assert client.get("/secret", headers={"Host": host, **BEARER}).status_code == status, host


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 200),
        ("https://LOCALHOST:8000", 200),
        ("https://models.example", 200),
        ("http://localhost:3000", 403),
        ("http://localhost", 403),
        ("http://127.0.0.1:8000", 403),
        ("http://evil.example", 403),
        ("http://models.example.evil", 403),
        ("http://evil.example/http://localhost:8000", 403),
        ("http://localhost:8000@evil.example", 403),
        ("file://", 403),
        ("null", 403),
        ("", 403),
        ("localhost:8000", 403),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/healthz"), ("POST", "/secret")])
def test_a_foreign_origin_is_refused(method: str, path: str, origin: str, status: int) -> None:
    client = client_of(ServerConfig(allowed_hosts=("models.example",)))
    response = client.request(method, path, headers={"Origin": origin})
    assert response.status_code == status
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_nothing_is_allowed_to_other_origins() -> None:
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    for headers in ({"Origin": "http://evil.example", **preflight}, preflight):
        response = client_of().options("/secret", headers=headers)
        assert response.status_code in (403, 405)
        assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        TOKEN,
        f"Basic {TOKEN}",
        "Bearer",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer \xe9",
        f"Bearer{TOKEN}",
    ],
)
def test_a_wrong_token_is_refused(authorization: str) -> None:
    client = client_of(ServerConfig(token=TOKEN))
    headers = {b"Authorization": authorization.encode("latin-1")}
    response = client.get("/secret", headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert TOKEN not in response.text


def test_the_token_opens_what_needs_it_and_some_paths_need_none() -> None:
    client = client_of(ServerConfig(token=TOKEN))
    for scheme in ("Bearer", "bearer"):
        assert client.get("/secret", headers={"Authorization": f"{scheme} {TOKEN}"}).status_code == 200
    twice = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer x")]
    assert client.get("/secret", headers=twice).status_code == 401
    for path, status in (("/healthz", 200), ("/page/page.js", 200), ("/nowhere", 401), ("/healthz/", 401)):
        assert client.get(path).status_code == status, path
    assert client.get("/page/../secret").status_code == 401
    assert client.get("/page/%2e%2e/secret").status_code in (401, 404)


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.extend((first, second))
        return first == second

    monkeypatch.setattr(hmac, "compare_digest", compare)
    client_of(ServerConfig(token=TOKEN)).get("/secret", headers={"Authorization": "Bearer wrong"})
    assert compared == [b"wrong", TOKEN.encode()]


@pytest.mark.parametrize("path", ["/healthz", "/secret", "/nowhere", "/fails"])
@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_every_answer_carries_the_headers(path: str, host: str) -> None:
    headers = client_of().get(path, headers={"Host": host}).headers
    for name, value in guard.SECURITY_HEADERS.items():
        assert headers.get_list(name) == [value]
    assert "default-src 'none'" in headers["content-security-policy"]
