"""The files of the page at `/`: they come whole, load nothing from elsewhere, and never turn a text into markup."""

import re
from importlib import resources

import pytest
from starlette.testclient import TestClient

from clearhead.config.serving import ServerConfig
from clearhead.server import create_app, page
from clearhead.server.page import TYPES, page_files
from clearhead.server.studio import page as studio_page
from clearhead.server.studio.app import create_studio

FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|style=|onclick"
    r"|https?://(?!www\.w3\.org/2000/svg\b)"  # which names the elements of SVG, and is never loaded
)
PACKAGES = {"/page/": page.__name__, "/studio/page/": studio_page.__name__}
FILES = [(address, name) for address, package in PACKAGES.items() for name in sorted(page_files(package))]


def content_of(address: str, name: str) -> str:
    return bytes(page_files(PACKAGES[address])[name].body).decode()


@pytest.fixture
def client() -> TestClient:
    return TestClient(create_app([]), base_url="http://127.0.0.1")


def test_every_file_comes_with_its_type(client: TestClient) -> None:
    names = [path.name for path in resources.files(page).iterdir() if path.name.endswith(tuple(TYPES))]
    assert {"index.html", "page.js", "page.css"} <= set(names)
    for name in names:
        response = client.get(f"/page/{name}")
        suffix = name[name.rfind(".") :]
        assert response.status_code == 200
        assert response.headers["content-type"] == f"{TYPES[suffix]}; charset=utf-8"
    assert client.get("/").text == client.get("/page/index.html").text


@pytest.mark.parametrize("name", ["__init__.py", "..%2Fapp.py", "nothing.js", "page.js%00", "%2e%2e%2f__init__.py", ""])
def test_nothing_else_comes(client: TestClient, name: str) -> None:
    response = client.get(f"/page/{name}")
    assert response.status_code == 404
    assert set(response.json()) == {"error"}


@pytest.mark.parametrize(("address", "name"), FILES)
def test_no_file_makes_markup_of_a_text_or_asks_elsewhere(address: str, name: str) -> None:
    content = content_of(address, name)
    assert not FORBIDDEN.findall(content)
    assert len(content.splitlines()) < 300


@pytest.mark.parametrize(("address", "name"), [file for file in FILES if not file[1].endswith(".css")])
def test_what_a_file_loads_is_there(address: str, name: str) -> None:
    paths = re.findall(r'(?:src|href|from)[= ]"(/(?:studio/)?page/[^"]+)"', content_of(address, name))
    assert paths or name in ("api.js", "chart.js", "keep.js", "sampling.js", "sections.html")
    client = TestClient(create_studio(ServerConfig(device="cpu")), base_url="http://127.0.0.1")
    assert all(client.get(path).status_code == 200 for path in paths)
