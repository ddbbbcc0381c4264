"""Every benchmark still starts: what it imports is there, and its options are read."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path for path in BENCHMARKS.rglob("*.py") if '__name__ == "__main__"' in path.read_text("utf-8"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(BENCHMARKS)))
def test_a_benchmark_says_what_it_measures(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `python benchmarks/NAME.py --help` does, without another process."""
    others = {path.stem for folder in (script.parent, BENCHMARKS) for path in folder.glob("*.py")}
    for name in others & set(sys.modules):
        monkeypatch.delitem(sys.modules, name)  # another folder's script may have a neighbor of the same name
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    before = set(sys.modules)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    for name in others & (set(sys.modules) - before):
        del sys.modules[name]
    page = f"{capsys.readouterr().out}{ended.value.code}"  # a script without options leaves with its docstring
    assert f"python benchmarks/{script.relative_to(BENCHMARKS).as_posix()}" in page
