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
    making = re.compile(rf"\bself\.{re.escape(name)}\s*(:[^=\n]+)?=(?!=)")
    texts = (making.sub("", file.read_text(encoding="utf-8", errors="replace")) for file in {home, *files})
    return any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts)
