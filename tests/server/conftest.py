"""Tests of the server need its extra: where it is not installed, they are skipped."""

import importlib.util

import pytest

NEEDED = ("starlette", "uvicorn", "openai", "httpx2")
collect_ignore_glob = [] if all(map(importlib.util.find_spec, NEEDED)) else ["*"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
