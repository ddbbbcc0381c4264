"""Every test works in a folder of its own; what is tested elsewhere is shared: prepared texts, examined models."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from examined_once import examine_once

from clearhead.workflows.tasks import causal


@pytest.fixture(scope="session", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEARHEAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(causal, "SAMPLE", causal.SAMPLE.model_copy(update={"max_new_tokens": 8}))
        yield


@pytest.fixture(autouse=True)
def own_folder_and_known_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examine_once(monkeypatch)
