"""The pages of the site: those of `docs`, the lessons, the benchmarks' tables, and what the library itself generates.

A verb's page comes from its parser, an option's line from its model, a symptom's page from the doctor's catalogue, the
Python reference from the docstrings: none of them can say something else than the program does.
"""

import importlib
import inspect
import json
import re
import shutil
from argparse import SUPPRESS
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import clearhead
from clearhead.cli import VERBS, module_of
from clearhead.config import RunConfig
from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.catalogue.symptoms import SYMPTOMS, Symptom
from clearhead.options import Options

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
RESULTS = ROOT / "benchmarks" / "results"
LESSONS = ROOT / "lessons"
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)")
GUIDES = (
    ("Start", ("start",)),
    ("Train", ("training", "runs", "scale")),
    ("Use", ("generation", "translation", "serving", "exports", "families", "python")),
    ("See", ("studio", "seeing")),
    ("Prove", ("doctor", "checks", "found-in-the-wild")),
)
OPTIONS = (
    "As flags of `clearhead train`, and in `clearhead.toml`, where `--model.d_model` is `d_model` under `[model]`."
)
WIDTH = 100
ROOMS = ("config", "parts", "models", "data", "interop", "inference", "training", "inspection", "workflows", "server")


def write_pages(folder: Path) -> None:
    """Write the site's sources into an empty folder."""
    for path in (*DOCS.glob("*.md"), *DOCS.glob("*.png"), *DOCS.glob("*.svg")):
        _copy(path, folder / path.name, "")
    _copy(ROOT / "README.md", folder / "start.md", "")
    (folder / "results").mkdir()
    for path in (*RESULTS.glob("*.md"), *RESULTS.glob("*.svg")):
        _copy(path, folder / "results" / path.name, "../")
    (folder / "lessons").mkdir()
    for path in _lessons():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = _linked("".join(cell["source"]), path, "../")
        notebook["cells"].insert(1, _kept(path.stem, notebook["metadata"]["clearhead"]))
        (folder / "lessons" / path.name).write_text(json.dumps(notebook), encoding="utf-8")
    for name, page in _generated():
        path = folder / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")


def _copy(source: Path, target: Path, up: str) -> None:
    if source.suffix != ".md":
        shutil.copy(source, target)
        return
    target.write_text(_linked(source.read_text(encoding="utf-8"), source, up), encoding="utf-8")


def _lessons() -> list[Path]:
    """The lessons with their outputs, which `lessons/run.py --keep` wrote."""
    return sorted((LESSONS / "outputs").glob("*.ipynb"))


def _kept(name: str, about: dict[str, Any]) -> dict[str, Any]:
    """A cell that says what run a lesson's outputs are of."""
    other = {
        "full": "Without `SIZE=full` a lesson trains less, and some numbers differ.",
        "test": "With `SIZE=full` a lesson trains longer, and some numbers differ.",
    }
    source = (
        f"*The outputs are of one run at {about['size']} size, with torch {about['torch']}.* {other[about['size']]} "
        f"To run it: `pip install '.[lessons]'`, then `python lessons/{name}.py`, or open the file as a notebook."
    )
    return {"cell_type": "markdown", "id": "kept", "metadata": {}, "source": source}


def _linked(page: str, source: Path, up: str) -> str:
    return LINK.sub(lambda match: _link(match, source, up), page)


def _link(match: "re.Match[str]", source: Path, up: str) -> str:
    """A link as the site has it: to a page of its own, or, to what only the repository holds, its path as text."""
    label, address = match.groups()
    if "://" in address or address.startswith("#"):
        return match[0]
    name, separator, anchor = address.partition("#")
    folder = LESSONS if source.suffix == ".ipynb" else source.parent  # a kept lesson links as the lesson itself does
    path = (folder / name).resolve()
    if (kept := LESSONS / "outputs" / f"{path.stem}.ipynb").exists() and path.parent == LESSONS:
        return f"[{label}]({up}lessons/{kept.name}{separator}{anchor})"
    if path.parent == DOCS:
        return f"[{label}]({up}{path.name}{separator}{anchor})"
    if path.parent == RESULTS:
        return f"[{label}]({up}results/{path.name}{separator}{anchor})"
    if path == RESULTS:
        return f"[{label}]({up}results/index.md)"
    if path == ROOT / "README.md":
        return f"[{label}]({up}start.md{separator}{anchor})"
    return f"{label} (`{path.relative_to(ROOT)}`)"


def _generated() -> Iterator[tuple[str, str]]:
    """Name and text of each page that is generated."""
    start, *guides = GUIDES
    groups = [
        start,
        ("Lessons", (*(f"lessons/{path.stem}" for path in _lessons()), "experiments")),
        *guides,
        ("Symptoms", ("symptoms/index",)),
        ("Reference", ("commands", "verbs/index", "options/index", "faults", "reference/index")),
        ("Measured", ("measured", "results/index")),
    ]
    trees = "\n\n".join(_tree(pages, title) for title, pages in groups)
    yield "index", f"# Clearhead\n\n*Transformers you can see through.*\n\n{_start()}\n\n{trees}\n"
    yield "verbs/index", f"# Verbs\n\n{_tree(VERBS)}\n"
    for verb, about in VERBS.items():
        yield f"verbs/{verb}", _verb(verb, about)
    tables = {
        name: field.annotation.__doc__ or ""
        for name, field in RunConfig.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Options)
    }
    yield "options/index", f"# Options of a run\n\n{OPTIONS}\n\n{_tree(tables)}\n"
    for name, about in tables.items():
        yield f"options/{name}", _options(name, about)
    yield "symptoms/index", f"# What do you see?\n\n{_tree(SYMPTOMS)}\n"
    for name, symptom in SYMPTOMS.items():
        yield f"symptoms/{name}", _symptom(symptom)
    yield "faults", _faults()
    yield "reference/index", f"# Python reference\n\n{_tree(('clearhead', *ROOMS))}\n"
    yield "reference/clearhead", _reference(clearhead)
    for room in ROOMS:
        yield f"reference/{room}", _reference(importlib.import_module(f"clearhead.{room}"))
    names = sorted(path.stem for path in RESULTS.glob("*.md"))
    yield "results/index", f"# Every table\n\nEach names the command that makes it.\n\n{_tree(names)}\n"


def _tree(names: Iterable[str], caption: str = "") -> str:
    listed = "\n".join(names)
    options = f":caption: {caption}\n:maxdepth: 1\n" if caption else ":maxdepth: 1\n"
    return f"```{{toctree}}\n{options}\n{listed}\n```"


def _start() -> str:
    return (
        "Two commands, from a clone of the repository, to a model that writes:\n\n"
        "    make setup\n    .venv/bin/clearhead train stories --minutes 2\n\n"
        "Then `clearhead generate`, `clearhead studio`, or your own text: [start](start.md)."
    )


def _verb(verb: str, about: str) -> str:
    parser = importlib.import_module(module_of(verb)).parser()
    return f"# clearhead {verb}\n\n{about[0].upper()}{about[1:]}.\n\n```text\n{_plain(parser.format_help())}\n```\n"


def _options(prefix: str, about: str) -> str:
    rows = [
        f"| `{action.option_strings[-1]}` | {_cell(str(action.metavar or ''))} | {_cell(action.help or '')} |"
        for action in importlib.import_module(module_of("train")).parser()._actions
        if action.dest.startswith(f"{prefix}.") and action.option_strings and action.help != SUPPRESS
    ]
    body = "\n".join(rows)
    return f"# {prefix}\n\n{about}\n\n| flag | value | what it does |\n|---|---|---|\n{body}\n"


def _symptom(symptom: Symptom) -> str:
    causes = "\n".join(
        f"| [{id}](../faults.md#{id.lower()}) | {_cell(CATALOGUE[id].title)} | {_cell(CATALOGUE[id].fix)} |"
        for id in symptom.causes
    )
    title = f"{symptom.title[0].upper()}{symptom.title[1:]}"
    return (
        f"# {title}\n\n{symptom.about}\n\n"
        f"    clearhead doctor --symptom {symptom.name} mymodel.py:build\n\n"
        "examines your model, says which of these causes it has, and which are ruled out:\n\n"
        f"| id | cause | what to change |\n|---|---|---|\n{causes}\n\n"
        f"If it is none of them: {symptom.otherwise}\n"
    )


def _faults() -> str:
    entries = "\n".join(
        f"## {entry.id}\n\n**{_escaped(entry.title)}**\n\n- What one sees: {_escaped(entry.symptom)}.\n"
        f"- How it comes about: {_escaped(entry.mechanism)}.\n- What to change: {_escaped(entry.fix)}.\n\n"
        f"```text\n{entry.mutant}\n```\n"
        for entry in CATALOGUE.values()
    )
    return f"# The faults that the doctor knows\n\nThe code is the smallest change that makes the fault.\n\n{entries}"


def _reference(module: ModuleType) -> str:
    entries = "\n".join(_entry(name, getattr(module, name)) for name in sorted(module.__all__))
    return f"# {module.__name__}\n\n{_docstring(module)}\n\n{entries}"


def _entry(name: str, value: object) -> str:
    if isinstance(value, ModuleType):
        return f"## {name}\n\n{_docstring(value)}\n"
    if not callable(value):
        kind = type(value).__name__
        return f"## {name}\n\nA {kind}" + (f" of {', '.join(map(str, value))}.\n" if isinstance(value, dict) else ".\n")
    return f"## {name}\n\n```text\n{_call(name, value)}\n```\n\n{_docstring(value)}\n"


def _call(name: str, value: Callable[..., object]) -> str:
    """A name with its parameters, on lines of their own where they are many."""
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return name
    if len(line := f"{name}{signature}") <= WIDTH:
        return line
    parameters = "".join(f"    {parameter},\n" for parameter in signature.parameters.values())
    returned = signature.return_annotation
    arrow = "" if returned is signature.empty else f" -> {inspect.formatannotation(returned)}"
    return f"{name}(\n{parameters}){arrow}"


def _docstring(value: object) -> str:
    text = inspect.getdoc(value) or ""
    return f"```text\n{_plain(text)}\n```" if text else ""


def _plain(text: str) -> str:
    return text.replace("```", "'''").rstrip()


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "\\<")
