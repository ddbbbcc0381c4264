"""The description of the routes: it names every one of them, and what is made from it never breaks the server."""

from itertools import product
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from run_folders import write_run
from running_server import running
from starlette.routing import Route
from starlette.testclient import TestClient

from clearhead.config.serving import ServerConfig
from clearhead.server import create_app
from clearhead.server.app import ROUTES
from clearhead.server.openapi import BODIES, description

EXAMPLES = 900  # for each of the routes, of valid requests and of damaged ones
SETTINGS = hypothesis.settings(
    max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)


def test_every_route_is_described_and_every_body_has_its_fields() -> None:
    document = description(ROUTES)
    paths = {route.path: route.methods for route in ROUTES if isinstance(route, Route)}
    assert {path for path in paths if not path.startswith("/page")} == set(document["paths"])
    for path, methods in paths.items():
        assert ("POST" in (methods or ())) == (path in BODIES)
    for path, body in BODIES.items():
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        name = schema["$ref"].rpartition("/")[2]
        fields = document["components"]["schemas"][name]
        assert set(fields["properties"]) == set(body.model_fields)
        assert fields["additionalProperties"] is False


def test_it_is_served() -> None:
    client = TestClient(create_app([]), base_url="http://localhost")
    assert client.get("/openapi.json").json() == description(ROUTES)


@pytest.mark.campaign
@pytest.mark.timeout(3000)
@pytest.mark.filterwarnings("default")
def test_generated_requests_get_an_answer_that_is_described(tmp_path: Path) -> None:
    """As schemathesis makes them from the description, and as it damages them: no 5xx, no answer in another form."""
    schemathesis = pytest.importorskip("schemathesis")
    objectives = ("causal", "masked", "seq2seq")
    runs = [write_run(tmp_path / objective, objective) for objective in objectives]
    calls = 0
    with running(runs, ServerConfig(device="cpu", engine="eager", slots=4)) as address:
        schema = schemathesis.openapi.from_dict(description(ROUTES))
        for path, mode in product(BODIES, schemathesis.GenerationMode):

            @SETTINGS
            @hypothesis.given(case=schema[path]["POST"].as_strategy(generation_mode=mode))
            def send(case: Any) -> None:
                nonlocal calls
                calls += 1
                response = case.call(base_url=address, timeout=60)
                assert response.status_code < 500, response.text
                if response.status_code >= 400:
                    assert set(response.json()) == {"error"}

            send()
    assert calls >= 10_000
