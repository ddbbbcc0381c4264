"""The library's own models, made from source that says something else in one place: a fault can so be planted in it."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

import clearhead

Changes = Mapping[str, tuple[str, str]]  # file below src/clearhead -> what it says, and what it is to say instead
ROOMS = ("parts", "models")  # imported anew; whatever else they use is as it was


class _Changed(SourceLoader):
    """Loads a file of the library with one text replaced. Nothing is kept on disk, as there is no time of change."""

    def __init__(self, path: str, old: str, new: str) -> None:
        self.path, self.old, self.new = path, old, new

    def get_filename(self, fullname: str) -> str:
        return self.path

    def get_data(self, path: str | bytes) -> bytes:
        text = Path(self.path).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.old!r} must occur once in {self.path}, not {text.count(self.old)} times")
        return text.replace(self.old, self.new).encode()


class _Finder(MetaPathFinder):
    def __init__(self, changes: Changes) -> None:
        self.changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self.changes.get(fullname.removeprefix("clearhead.").replace(".", "/") + ".py")
        spec = PathFinder.find_spec(fullname, path) if change else None
        if spec is None or spec.origin is None or change is None:
            return None
        return spec_from_loader(fullname, _Changed(spec.origin, *change), origin=spec.origin)


def models(changes: Changes) -> ModuleType:
    """`clearhead.models` with these changes; the one that everybody else imports stays as it is."""
    names = tuple(f"clearhead.{room}" for room in ROOMS)
    held = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(names)}
    finder = _Finder(changes)
    sys.meta_path.insert(0, finder)
    try:
        return import_module("clearhead.models")
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(names)]:
            del sys.modules[name]
        sys.modules.update(held)
        for room in ROOMS:  # the package names its rooms as well
            vars(clearhead).pop(room, None)
            if f"clearhead.{room}" in held:
                setattr(clearhead, room, held[f"clearhead.{room}"])
