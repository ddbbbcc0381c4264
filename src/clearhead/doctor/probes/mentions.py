"""What a person's code beside a model says: where it mentions a part, and how it fills up short rows."""

import inspect
import re
from itertools import islice
from pathlib import Path

from torch import nn

from clearhead.doctor.calling.names import is_of_a_library

FILES = 300  # of Python that are read at most
SIZE = 1 << 17  # bytes of one of them
NEXT = re.compile(
    r"\b([\w.]+)\[\s*(\w+) ?:[^\[\]:]+\][^#]{0,160}?\b\1\[\s*\2 ?\+ ?1 ?:"
)  # text[i:j], text[i + 1:j + 1]
LENGTH = r"[^\n+]{0,80}\b(len|max\w*|n_?pad\w*|pad_?len\w*)\b[^\n+]{0,80}"
IN_FRONT = re.compile(  # of the row
    rf"\]\s*\*\s*{LENGTH}\+\s*[\w(]"  # [0] * (size - len(row)) + row
    r"|\w\[(\w+)\] = [^\n]+\n(?:[^\n]*\n){0,4}?\s*\2 -= 1\n"  # filled[i] = item, and i counts down
    r"|\.pad\(\s*\w+,\s*\(\(?[^,()\n]*\blen\([^,\n]*, ?0\)"
    r"|padding(_side)? ?= ?['\"](left|pre)['\"]"
    r"|\[-len\(\w+\) ?:\] =|\bleft[-_ ]pad(ded|s)?\b|padded on the left"
)
BEHIND = re.compile(
    r"\+ ?\[[^\]\n]*\] ?\*|\brnn(\.| import )[^\n]*\bpad_sequence\b|\[: ?len\(\w+\)\] ="
    r"|padding(_side)? ?= ?(True|['\"](right|post|longest|max_length)['\"])"
)


def is_mentioned(model: nn.Module, path: str) -> bool:
    """Whether any Python file around the class that makes a part mentions its name but in that assignment.

    True if that cannot be told, as of the parts of a list, of classes of installed packages, and in too large a folder.
    """
    owner, _, name = path.rpartition(".")
    texts = None if name.isdigit() else texts_beside(type(model.get_submodule(owner)))
    return texts is None or any(_mentions(text, name) for text in texts.values())


def texts_beside(cls: type) -> dict[Path, str] | None:
    """Every Python file around a class; None of classes of installed packages, and in too large a folder."""
    try:
        home = Path(inspect.getfile(cls)).resolve()
    except (TypeError, OSError):
        return None
    if is_of_a_library(cls) or "site-packages" in home.parts:
        return None
    here = Path.cwd().resolve()
    files = [*islice((here if home.is_relative_to(here) else home.parent).rglob("*.py"), FILES + 1)]
    if len(files) > FILES:
        return None
    return {file: file.read_text(encoding="utf-8", errors="replace") for file in {home, *files} if file.is_file()}


def gives_next(model: nn.Module) -> str | None:
    """The file beside a model that imports its class, and cuts its targets one token behind its rows; else None."""
    cls = type(model)
    imports = re.compile(rf"^\s*(from|import)\b.*\b{re.escape(cls.__module__.rpartition('.')[2])}\b", re.M)
    for file, text in sorted((texts_beside(cls) or {}).items()):
        if len(text) <= SIZE and cls.__name__ in text and imports.search(text) and NEXT.search(text):
            return file.name
    return None


def filled_side(model: nn.Module) -> tuple[str, str]:
    """The file beside a model that fills up short rows, and where it does, "behind" or "front"; empty if none does.

    Where one fills them behind, another that fills them in front is not believed.
    """
    texts = {file: text for file, text in (texts_beside(type(model)) or {}).items() if len(text) <= SIZE}
    for side, pattern in (("behind", BEHIND), ("front", IN_FRONT)):
        for file in sorted(texts):
            if pattern.search(texts[file]):
                return file.name, side
    return "", ""


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
