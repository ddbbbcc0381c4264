"""Families of transformers, made from tiny configs without any download, are healthy."""

from pathlib import Path

import pytest
import torch

from clearhead.doctor import check
from clearhead.doctor.load.loading import load
from clearhead.errors import DataError, UsageError
from clearhead.interop import FAMILIES

transformers = pytest.importorskip("transformers", reason="the families are those of transformers: pip install it")

MORE = ["bert", "roberta", "t5", "bart", "gpt_neox", "opt", "gemma", "phi", "falcon", "mixtral"]
LIKE_ANOTHER = {"arcee", "mistral", "qwen2", "roberta", "marian", "pegasus"}  # built as llama, bert and bart are
FAMILY_NAMES = [
    pytest.param(name, marks=[pytest.mark.campaign] if name in LIKE_ANOTHER else [])
    for name in sorted({*FAMILIES, *MORE})
]
HARMLESS = {"A13", "I01"}  # warnings that transformers' own models earn: weights that nothing reads


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_families_are_healthy(family: str) -> None:
    torch.manual_seed(0)
    report = check(load(f"hf:{family}"), level="standard")
    assert report.verdict == "healthy", str(report)
    assert {finding.id for finding in report.findings} <= HARMLESS, str(report)


def test_settings_reach_the_config() -> None:
    model = load("hf:llama", {"num_hidden_layers": "1", "tie_word_embeddings": "true"})
    assert len(model.model.layers) == 1  # type: ignore[arg-type, union-attr]


BAD = {
    "raises": (
        "def build():\n    raise RuntimeError('no such luck')\n",
        r"cannot be called .*no such luck",
    ),
    "stops": ("import sys\nsys.exit('enough')\n", "cannot be imported .SystemExit: enough"),
    "nothing": ("def build():\n    return 3\n", "returned an int, not a torch.nn.Module"),
    "without": ("x = 1\n", r"has no build\(\)"),
    "needs": ("def build(size):\n    return size\n", r"needs arguments \(size\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_make_no_model(name: str, tmp_path: Path) -> None:
    code, said = BAD[name]
    path = tmp_path / f"{name}_target.py"
    path.write_text(code, encoding="utf-8")
    with pytest.raises(DataError, match=said):
        load(str(path))


def test_a_module_in_a_file_is_a_model_too(tmp_path: Path) -> None:
    path = tmp_path / "ready_target.py"
    path.write_text("from torch import nn\nmine = nn.Linear(2, 2)\nclass Mine(nn.Linear):\n    def __init__(self):\n"
                    "        super().__init__(3, 3)\n", encoding="utf-8")  # fmt: skip
    assert load(f"{path}:mine").in_features == 2
    assert load(f"{path}:Mine").in_features == 3


@pytest.mark.parametrize(
    ("target", "settings", "error", "said"),
    [
        ("hf:lama", {}, DataError, "did you mean 'llama'"),
        ("hf:llama", {"num_hiden_layers": "1"}, UsageError, "did you mean 'num_hidden_layers'"),
        ("model.py:build", {"a": "1"}, UsageError, "--set is for hf:NAME only"),
        ("nothing", {}, UsageError, "names no model"),
        ("absent.py:build", {}, DataError, "there is no file absent.py"),
        ("no_such_package_at_all:build", {}, DataError, "cannot be imported"),
        ("math:pi", {}, DataError, "is a float"),
        ("math:floor", {}, DataError, "needs arguments"),
        ("math:bild", {}, DataError, "there is no 'bild'"),
        ("os:getcwd", {}, DataError, "returned a str, not a torch.nn.Module"),
    ],
)
def test_targets_that_are_none(target: str, settings: dict[str, str], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        load(target, settings)
