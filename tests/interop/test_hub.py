"""Names of the hub: a folder wins, code and pickles stay there, and what goes wrong is a sentence."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clearhead.errors import DataError, UsageError
from clearhead.interop import find_folder
from clearhead.interop.hf import hub


class Hub(ModuleType):
    """Stands in for huggingface_hub; remembers what was asked."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        self.downloads: list[tuple[str, Any]] = []
        self.error = error

    def snapshot_download(self, name: str, *, allow_patterns: list[str]) -> str:
        self.downloads.append((name, allow_patterns))
        if self.error:
            raise self.error
        return "fetched"


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    monkeypatch.chdir(tmp_path)
    module = Hub()
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setattr(hub, "find_spec", lambda name: object())
    return module


def test_a_folder_wins(fake_hub: Hub) -> None:
    Path("gpt2").mkdir()
    assert find_folder("gpt2") == Path("gpt2")
    assert not fake_hub.downloads


@pytest.mark.parametrize("name", ["gpt2", "owner/a-model_1.5"])
def test_weights_and_json_are_fetched_and_nothing_else(name: str, fake_hub: Hub) -> None:
    assert find_folder(name) == Path("fetched")
    assert fake_hub.downloads == [(name, ["*.safetensors", "*.json"])]


@pytest.mark.parametrize("name", ["a/b/c", "../x", "/nowhere/x", "x/", "", "a b", "-x", "runs/nothing", "~/nothing"])
def test_what_can_be_no_name_of_the_hub_is_not_asked_for(name: str, fake_hub: Hub) -> None:
    Path("runs").mkdir()
    if name:
        with pytest.raises(DataError, match="there is no folder"):
            find_folder(name)
    assert not fake_hub.downloads


def test_a_folder_misspelt_is_guessed(fake_hub: Hub) -> None:
    Path("runs/mine").mkdir(parents=True)
    with pytest.raises(DataError, match="did you mean 'mine'"):
        find_folder("runs/mime")


def test_a_failure_is_one_sentence(fake_hub: Hub) -> None:
    fake_hub.error = OSError("We cannot connect.\n\nMore lines about it")
    with pytest.raises(DataError, match=r"from the hub it cannot be fetched: We cannot connect$"):
        find_folder("gpt2")


def test_without_the_extra_it_is_named(fake_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'clearhead\[hub\]'"):
        find_folder("gpt2")
