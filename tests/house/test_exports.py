"""What the library and its rooms export is a promise, and written down."""

import importlib
from pathlib import Path

import clearhead

SOURCE = Path(clearhead.__file__).parent
FROZEN = Path(__file__).with_name("exports.txt")
ROOMS = ["clearhead", *sorted(f"clearhead.{path.parent.name}" for path in SOURCE.glob("*/__init__.py"))]


def exported() -> list[str]:
    """`room.name` of every public name, room by room."""
    modules = [importlib.import_module(room) for room in ROOMS]
    return [f"{module.__name__}.{name}" for module in modules for name in sorted(getattr(module, "__all__", ()))]


def test_the_exports_are_the_written_ones() -> None:
    """A new export is a promise. To make it, write it into exports.txt; to break one, take it out."""
    frozen = FROZEN.read_text(encoding="utf-8").splitlines()
    assert sorted(set(frozen) - set(exported())) == [], "promised, and no longer there"
    assert sorted(set(exported()) - set(frozen)) == [], "not written down"
    assert frozen == exported(), "each once, room by room and in the order of the alphabet"


def test_every_export_is_there_and_every_room_says_what_it_exports() -> None:
    for room in ROOMS:
        module = importlib.import_module(room)
        assert hasattr(module, "__all__"), room
        assert [name for name in module.__all__ if not hasattr(module, name)] == []
