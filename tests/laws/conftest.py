"""What the laws of compiled code share: it is compiled once."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder_of_compiled_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def compiled_code(folder_of_compiled_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code is kept for the tests after this one."""
    monkeypatch.setenv("CLEARHEAD_CACHE", str(folder_of_compiled_code))
