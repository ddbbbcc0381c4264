"""The site has a page for all that it should, and no link on it leads nowhere. Sphinx itself is `make docs`."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clearhead.cli import VERBS
from clearhead.config import RunConfig
from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.catalogue.symptoms import SYMPTOMS

SITE = Path(__file__).parents[2] / "docs" / "site"
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(SITE))
    from pages import write_pages

    folder = tmp_path_factory.mktemp("site")
    write_pages(folder)
    yield folder
    patch.undo()
    sys.modules.pop("pages", None)


def test_every_verb_option_table_symptom_and_fault_has_its_place(folder: Path) -> None:
    pages = {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}
    assert {f"verbs/{verb}.md" for verb in VERBS} <= pages
    assert {f"symptoms/{name}.md" for name in SYMPTOMS} <= pages
    for name in ("model", "train", "data"):
        page = (folder / f"options/{name}.md").read_text(encoding="utf-8")
        fields = RunConfig.model_fields[name].annotation.model_fields  # type: ignore[union-attr]
        assert [field for field in fields if f"`--{name}.{field}`" not in page] == []
    faults = (folder / "faults.md").read_text(encoding="utf-8")
    assert [id for id in CATALOGUE if f"## {id}\n" not in faults] == []


def test_no_link_leads_nowhere(folder: Path) -> None:
    broken = []
    for path in folder.rglob("*.md"):
        for address in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
            if "://" not in address and not (path.parent / address).exists():
                broken.append(f"{path.relative_to(folder)}: {address}")
    assert broken == []


def test_a_lesson_says_of_what_size_its_outputs_are(folder: Path) -> None:
    lessons = sorted((SITE.parents[1] / "lessons" / "outputs").glob("*.ipynb"))
    assert lessons
    for path in lessons:
        size = json.loads(path.read_text(encoding="utf-8"))["metadata"]["clearhead"]["size"]
        page = json.loads((folder / "lessons" / path.name).read_text(encoding="utf-8"))
        assert f"one run at {size} size" in page["cells"][1]["source"]
