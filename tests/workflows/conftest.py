"""Every test works in a folder of its own; what is tested elsewhere is shared: prepared texts, examined models."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from examined_once import examine_once
from workflow_helpers import trained

from clearhead.workflows import Run
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


@pytest.fixture(scope="session")
def undisturbed(shared_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, of which nothing may be changed; its text, my.txt, lies beside it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        trained()
    return folder / "run"


@pytest.fixture
def finished(undisturbed: Path, own_folder_and_known_models: None) -> Run:
    """A copy of it, in the current folder, that may be changed."""
    shutil.copy(undisturbed.parent / "my.txt", "my.txt")
    shutil.copytree(undisturbed, "run")
    return Run(Path("run"))
