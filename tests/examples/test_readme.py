"""README's block of Python runs as it is printed."""

import re
from pathlib import Path

import pytest
import torch

import clearhead

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_block_runs_as_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for the time: what it calls trains for as many steps as a test can wait for."""
    _, block = BLOCKS
    train = clearhead.train
    budgets: list[float] = []

    def hurried(source: str, *, minutes: float) -> clearhead.Run:
        budgets.append(minutes)
        return train(source, preset="tiny", options={"train": {"steps": 3}})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(clearhead, "train", hurried)
    exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert printed.startswith("Once upon a time")
    assert "●" in printed
    assert "because it is called DecoderLM" in printed
    assert "FAIL" not in printed
    assert len(budgets) == 1


def test_the_block_about_seeing_runs_behind_the_names_that_it_uses() -> None:
    block, _ = BLOCKS
    config = clearhead.ModelConfig(vocab_size=11, block_size=8, n_layers=1, n_heads=2, d_model=8)
    names = {"ch": clearhead, "model": clearhead.DecoderLM(config), "ids": torch.zeros(1, 4, dtype=torch.long)}
    exec(compile(block, "README.md", "exec"), names)
