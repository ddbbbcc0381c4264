"""Whether a person's code mentions a part of a model anywhere but where it makes it."""

import inspect
import re
from itertools import islice
from pathlib import Path

from torch import nn

from clearhead.doctor.calling.names import is_of_a_library

FILES = 300  # of Python that are read at most


def is_mentioned(model: nn.Module, path: str) -> bool:
    """Whether any Python file around the class that makes a part mentions its name but in that assignment.

    True if that cannot be told, as of the parts of a list, of classes of installed packages, and in too large a folder.
    """
    owner, _, name = path.rpartition(".")
    cls = type(model.get_submodule(owner))
    try:
        home = Path(inspect.getfile(cls)).resolve()
    except (TypeError, OSError):
        return True
    if name.isdigit() or is_of_a_library(cls) or "site-packages" in home.parts:
        return True
    here = Path.cwd().resolve()
    files = [*islice((here if home.is_relative_to(here) else home.parent).rglob("*.py"), FILES + 1)]
    if len(files) > FILES:
        return True
    return any(_mentions(file.read_text(encoding="utf-8", errors="replace"), name) for file in {home, *files})


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
