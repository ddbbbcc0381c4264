"""Tests of the server need its extra: where it is not installed, they are skipped."""

import importlib.util

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("starlette") and importlib.util.find_spec("uvicorn") else ["*"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
