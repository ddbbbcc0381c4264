"""The lessons that the site shows are those that stand in `lessons` now."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
KEPT = ROOT / "lessons" / "outputs"
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
FORMULA = re.compile(r"\$\$[^$]+\$\$|\$[^$\n]+\$")
MAX_BYTES = 500_000
Cell = tuple[str, str, tuple[str, ...]]  # its kind, source and tags


def cells_of(notebook: dict[str, Any]) -> list[Cell]:
    return [
        (cell["cell_type"], "".join(cell["source"]), tuple(cell["metadata"].get("tags", ())))
        for cell in notebook["cells"]
    ]


def test_every_lesson_is_kept_with_its_outputs_and_nothing_else_is() -> None:
    assert LESSONS
    assert [path.stem for path in LESSONS] == sorted(path.stem for path in KEPT.glob("*.ipynb"))


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_what_is_kept_is_what_stands_there_now(lesson: Path) -> None:
    jupytext = pytest.importorskip("jupytext")
    kept = json.loads((KEPT / f"{lesson.stem}.ipynb").read_text(encoding="utf-8"))
    now = cells_of(jupytext.read(lesson, fmt="py:percent"))
    changed = [source for kind, source, tags in now if (kind, source, tags) not in cells_of(kept)]
    assert changed == [], f"run lessons/run.py --keep {lesson.stem[:2]}"
    assert cells_of(kept) == now


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_its_outputs_are_whole_and_small(lesson: Path) -> None:
    path = KEPT / f"{lesson.stem}.ipynb"
    assert path.stat().st_size <= MAX_BYTES
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["metadata"]["clearhead"].keys() == {"size", "seconds", "torch"}
    code = [cell for cell in kept["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell["outputs"] if output["output_type"] == "error"]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_three_answers_and_its_links_lead_somewhere(lesson: Path) -> None:
    source = lesson.read_text(encoding="utf-8")
    assert source.count('# %% tags=["hide-cell"]') >= 3 or lesson.name >= "13"  # what follows the twelve is no lesson
    assert "# ## Where this stands in the house" in source
    prose = "\n".join(line for line in source.splitlines() if line.startswith("# "))
    links = [link for link in LINK.findall(prose) if "://" not in link]
    assert "../docs/studio.md" in links
    assert [link for link in links if not (lesson.parent / link).exists()] == []


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_its_formulas_can_be_written_as_mathml(lesson: Path) -> None:
    latex2mathml = pytest.importorskip("docutils.utils.math.latex2mathml")
    prose = "\n".join(line[2:] for line in lesson.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
    for formula in FORMULA.findall(CODE.sub("", prose)):
        latex2mathml.tex2mathml(formula.strip("$"))
