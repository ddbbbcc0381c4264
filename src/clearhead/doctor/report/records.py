"""Results as lines for a person and as plain data for a program. Imports no torch."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from itertools import repeat
from types import UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from clearhead.pages import printable

Json = dict[str, Any]
Line = tuple[str, str]  # (text, style as rich names it, or nothing)
LABEL = 10  # columns


class Record:
    """A dataclass that can be written as JSON and read back. `computed`: properties that are written beside its fields.

    JSON has no NaN and no infinity: such numbers are written as null, and read back as NaN.
    """

    computed: ClassVar[tuple[str, ...]] = ()

    def as_json(self) -> Json:
        """Plain data, as docs/doctor.md describes it."""
        data: Json = _plain(self)
        return data

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The reverse of `as_json`."""
        record: Self = _read(cls, document)
        return record


class ReadableRecord(Record):
    """A whole result, which can also be printed. Subclasses define `_lines`, and `summary` in one line."""

    seconds: float

    def as_json(self) -> Json:
        """Plain data, as docs/doctor.md describes it."""
        return super().as_json() | {"seconds": round(self.seconds, 3)}

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        raise NotImplementedError

    def _lines(self, verbose: bool) -> Iterator[Line]:
        raise NotImplementedError

    def lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """As a person reads it, the verdict first; verbose adds what was assumed, run and passed."""
        for text, style in self._lines(verbose):
            yield printable(text), style

    def text(self, *, verbose: bool = False) -> str:
        """The lines without their styles."""
        return "\n".join(text for text, _ in self.lines(verbose=verbose))

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary}>"


def labelled(label: str, text: object) -> str:
    """An indented line behind its label."""
    return f"  {label:<{LABEL}}{text}"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value):
        computed = {name: getattr(value, name) for name in getattr(value, "computed", ())}
        return _plain({_key(field): getattr(value, field.name) for field in fields(value)} | computed)
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def _read(kind: Any, value: Any) -> Any:
    """Plain data as what a type hint asks for."""
    parts = get_args(kind)
    if get_origin(kind) is UnionType:  # X | None
        return None if value is None else _read(parts[0], value)
    if get_origin(kind) is tuple:
        return tuple(map(_read, repeat(parts[0]) if parts[-1] is ... else parts, value))
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{field.name: _read(hints[field.name], value[_key(field)]) for field in fields(kind)})
    return math.nan if kind is float and value is None else value


def _key(field: Field[Any]) -> str:
    """The key of a field in JSON: its name, or another where Python does not allow the name."""
    return str(field.metadata.get("key", field.name))
