"""What a person's code beside a model says: where it mentions a part, and how it fills up short rows."""

import inspect
import re
from functools import lru_cache
from itertools import islice
from pathlib import Path

from torch import nn

from clearhead.doctor.calling.names import is_of_a_library

FILES = 300  # of Python that are read at most
PROJECT = (".git", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "README.md", "LICENSE")
SIZE, WHOLE = 1 << 17, 1 << 22  # bytes of one of them, and of all
LINE = 300  # characters of a line that is looked at: no pattern below takes long then
COMMENT = re.compile(r"#[^\n]*")
NEXT = re.compile(  # text[i:j], text[i + 1:j + 1]
    r"(?<![\w.])([\w.]{1,80})\[\s{0,8}(\w{1,40}) ?:[^\[\]:]{1,80}\][^#]{0,160}?\b\1\[\s{0,8}\2 ?\+ ?1 ?:"
)
LENGTH = r"[^\n+]{0,80}\b(len|max\w*|n(?:um)?_?pad\w*|pad_?len\w*)\b[^\n+]{0,80}"
IN_FRONT = re.compile(  # of the row
    rf"\]\s*\*\s*{LENGTH}\+\s*[A-Za-z_(]"  # [0] * (size - len(row)) + row
    r"|\w\[(\w+)\] = [^\n]+\n(?:[^\n]*\n){0,4}?\s*\2 -= 1\n"  # filled[i] = item, and i counts down
    r"|\.pad\(\s*\w+,\s*\(\(?[^,()\n]*\blen\([^,\n]*, ?0\)"
    r"|padding(_side)? ?= ?['\"](left|pre)['\"]"
    r"|(?<![\w.])(?!mask|bias|buffer|cache)\w{1,40}"
    r"\[-(len\(\w{1,40}\)|\w{0,40}len\w{0,40}|n(um)?_\w{0,40}items) ?:\] ?=(?!=)"
    r"|\bpad_first ?= ?True|\bleft_pad(ded|s)?\b"  # that before: filled[-len(row) :] = row
)
BEHIND = re.compile(
    rf"\+ ?\[[^\]\n]{{0,80}}\] ?\*{LENGTH}|\brnn(\.| import )[^\n]*\bpad_sequence\b|\[: ?len\(\w+\)\] ="
    r"|padding(_side)? ?= ?['\"](right|post)['\"]"
    r"|\bfix_length ?= ?(?!None)[\w.]|\bBucketIterator(\.splits)?\("  # torchtext's
)


def is_mentioned(model: nn.Module, path: str) -> bool:
    """Whether any Python file around the class that makes a part mentions its name but in that assignment.

    True if that cannot be told, as of the parts of a list, of classes of installed packages, and in too large a folder.
    """
    owner, _, name = path.rpartition(".")
    texts = None if name.isdigit() else texts_beside(type(model.get_submodule(owner)))
    return texts is None or any(_mentions(text, name) for text in texts.values())


def texts_beside(cls: type) -> dict[Path, str] | None:
    """Every Python file of the project around a class; None of installed classes, too large a folder or file."""
    try:
        home = Path(inspect.getfile(cls)).resolve()
    except (TypeError, OSError):
        return None
    if is_of_a_library(cls) or "site-packages" in home.parts:
        return None
    files = [*islice(_project_of(home).rglob("*.py"), FILES + 1)]
    whole = [file for file in {home, *files} if file.is_file()]
    sizes = [file.stat().st_size for file in whole]
    if len(files) > FILES or max(sizes, default=0) > SIZE or sum(sizes) > WHOLE:
        return None
    return {file: file.read_text(encoding="utf-8", errors="replace") for file in whole}


def _project_of(home: Path) -> Path:
    """The folder of the project that a file belongs to, below where this runs.

    The first around the file that a repository or a package begins in, else the last that holds code itself: beside a
    folder in which there is none, another one may be of another project.
    """
    here, project = Path.cwd().resolve(), home.parent
    if not home.is_relative_to(here):
        return project
    for folder in (folder for folder in home.parents if folder.is_relative_to(here)):
        if any((folder / mark).exists() for mark in PROJECT):
            return folder
        project = folder if any(folder.glob("*.py")) else project
    return project


def _code_beside(cls: type) -> dict[Path, str]:
    """The same without comments and long lines, in the order of the files."""
    texts = texts_beside(cls) or {}
    return {
        file: "".join(f"{line}\n" for line in COMMENT.sub("", texts[file]).splitlines() if len(line) <= LINE)
        for file in sorted(texts)
    }


def is_set_beside(model: nn.Module, name: str) -> bool:
    """Whether code beside a model sets an attribute of this name from outside, as `model.criterion = loss` does."""
    setting = re.compile(rf"(?<!self)\.{re.escape(name)}\s{{0,8}}=(?!=)")
    return any(setting.search(text) for text in _code_beside(type(model)).values())


def file_that_shifts(model: nn.Module) -> str | None:
    """The file beside a model that imports its class, and cuts its targets one token behind its rows; else None."""
    cls = type(model)
    imports = re.compile(rf"^[ \t]*(from|import)\b.*\b{re.escape(cls.__module__.rpartition('.')[2])}\b", re.M)
    for file, text in _code_beside(cls).items():
        if cls.__name__ in text and imports.search(text) and NEXT.search(text):
            return file.name
    return None


def filled_side(model: nn.Module) -> tuple[str, str]:
    """The file beside a model that fills up short rows, and where it does, "behind" or "front"; empty if none does.

    Where both are done, neither is believed.
    """
    return _side_beside(type(model))  # type: ignore[arg-type]  # a class has a hash


@lru_cache(16)  # several checks ask, and all files are read each time
def _side_beside(cls: type) -> tuple[str, str]:
    texts, sides = _code_beside(cls), {"behind": BEHIND, "front": IN_FRONT}
    files = {side: next((f.name for f in texts if sides[side].search(texts[f])), "") for side in sides}
    filled = [(file, side) for side, file in files.items() if file]
    return filled[0] if len(filled) == 1 else ("", "")


def is_used_by_its_class(model: nn.Module, path: str) -> bool:
    """Whether the class that holds a part, or one that it inherits from, mentions it but where it makes it.

    True if that cannot be told.
    """
    owner, _, name = path.rpartition(".")
    bases = type(model.get_submodule(owner)).__mro__
    try:
        return any(_mentions(inspect.getsource(cls), name) for cls in bases[: bases.index(nn.Module)])
    except (OSError, TypeError):
        return True


def _mentions(text: str, name: str) -> bool:
    making = rf"\bself\.{re.escape(name)}\s*(:[^=\n]+)?=(?!=)"
    return re.search(rf"\b{re.escape(name)}\b", re.sub(making, "", text)) is not None
