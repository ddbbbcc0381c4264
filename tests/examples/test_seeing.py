"""The blocks of Python on the page about seeing run as they are printed, one after the other."""

import re
from pathlib import Path

import pytest

from clearhead import workflows

PAGE = Path(__file__).parents[2] / "docs" / "seeing.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_blocks_run_as_they_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path / "cache"))
    Path("my.txt").write_text("To be, or not to be: that is the question.\n" * 60, encoding="utf-8")
    options = {"model": {"n_layers": 2, "n_heads": 2, "d_model": 16, "block_size": 16}, "train": {"steps": 3}}
    workflows.train("my.txt", options=options, progress=False)
    assert len(BLOCKS) >= 2
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), namespace)
