"""The application before it has anything to serve."""

import subprocess
import sys

from starlette.testclient import TestClient

from clearhead.server import create_app


def test_it_answers_and_refuses_in_one_envelope() -> None:
    with TestClient(create_app([]), base_url="http://localhost") as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/healthz/").status_code == 404  # and no redirection to what the Host header says
        assert client.post("/healthz").json()["error"]["type"] == "invalid_request_error"


def test_importing_the_room_needs_no_extra() -> None:
    program = (
        "import sys; sys.modules |= dict.fromkeys(['starlette', 'uvicorn', 'torch', 'jinja2'])\n"
        "import clearhead.server, clearhead.config\n"
        "assert clearhead.server.__all__\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
