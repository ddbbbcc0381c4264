"""Which tensor of a foreign file is which of ours: a family's table, spelt out for one model. Imports no torch."""

from collections.abc import Iterable, Mapping
from itertools import count
from typing import NamedTuple

from clearhead.config import ModelConfig
from clearhead.interop.hf.buffers import find_buffers
from clearhead.interop.hf.family import Entry, Family
from clearhead.reference.arrays import Shape
from clearhead.reference.shapes import weight_shapes

KINDS = ("weight", "bias")  # what a module holds


class Link(NamedTuple):
    """One foreign tensor, the own tensors it is made of, and what was done to them.

    Args:
        own: names of the own tensors, and `shapes` theirs.
        foreign: name of the foreign tensor.
        transposed: whether it has its axes the other way round.
        stream: the axis of the own tensors that lies along the residual stream, where the family orders that otherwise.
        groups: the own tensors' rows come in so many parts each, which alternate in the foreign tensor.
        unread_rows: rows of zeros before all others.
        row: whether the foreign tensor is a table of this one row.
        optional: whether a file may lack it, which means zeros.
    """

    own: tuple[str, ...]
    shapes: tuple[Shape, ...]
    foreign: str
    transposed: bool = False
    stream: int | None = None
    groups: int = 1
    unread_rows: int = 0
    row: bool = False
    optional: bool = False

    @property
    def foreign_shape(self) -> Shape:
        """The shape that the foreign tensor must have."""
        stacked = (self.unread_rows + sum(shape[0] for shape in self.shapes), *self.shapes[0][1:])
        turned = stacked[::-1] if self.transposed else stacked
        return (1, *turned) if self.row else turned


def links(family: Family | None, config: ModelConfig) -> list[Link]:
    """Every tensor of a file that holds such a model: in the family's names, or without a family in our own."""
    if family is None:
        return [Link((name,), (shape,), name) for name, shape in weight_shapes(config).items()]
    there = weight_shapes(family.complete(config))
    meant = [entry for entry in family.entries if not entry.only or config.feedforward in entry.only]
    table = [link for entry in meant for link in _spell_out(entry, there, family.halves, config.n_heads)]
    linked = sorted(name for link in table for name in link.own)
    assert linked == sorted(there), f"{family.name}'s table does not hold every weight exactly once"
    return table


def copies(family: Family | None, table: Iterable[Link]) -> dict[str, str]:
    """Foreign tensors that are another one under a second name -> the name that the table has for it."""
    names = {own: link.foreign for link in table for own in link.own}
    copied = family.copies if family else {}
    return {copy: names[own] for copy, own in copied.items() if own in names and copy not in names.values()}


def names_in_file(family: Family | None, table: Iterable[Link], names: Iterable[str]) -> dict[str, str]:
    """What the table calls each tensor of a file -> what the file calls it. What is unread is left out."""
    if family is None:
        return {name: name for name in names}
    second = copies(family, table)
    known = {link.foreign for link in table} | {*second, *family.constants, *family.ignored}
    present = dict.fromkeys(names)
    file_names: dict[str, str] = {}
    for name in present:
        table_name = name
        for older, newer in family.old_names.items():
            table_name = table_name.replace(older, newer)
        whole = family.prefix + table_name
        if table_name not in known and (whole in known or find_buffers(family.buffers, [whole])):
            table_name = whole
        if table_name not in family.ignored:
            file_names[name if table_name in present or table_name in file_names else table_name] = name
    for copy, original in second.items():
        if copy in file_names and original not in file_names:
            file_names[original] = file_names.pop(copy)
    return file_names


def names_of(entry: Entry, kind: str, layer: int) -> tuple[tuple[str, ...], str]:
    """What the entry's weight or bias in this block is called: by us, in one or several tensors, and by the others.

    Without a kind, the entry is a tensor itself.
    """
    modules = (entry.own,) if isinstance(entry.own, str) else entry.own
    joint, inner = (entry.joint, ".") if kind else ("", "")
    own = tuple(f"{module}{inner}{kind}".replace(".N.", f".{layer}.") for module in modules)
    return own, f"{entry.foreign}{joint}{kind}".replace(".N.", f".{layer}.")


def _spell_out(entry: Entry, there: Mapping[str, Shape], halved: bool, n_heads: int) -> list[Link]:
    """The entry's links among the weights that are there, for every block, and of a module for weight and bias."""
    groups = n_heads if entry.by_head else 1
    spelled_out = []
    for layer in count():
        block = []
        for kind in (*KINDS, ""):
            own, foreign = names_of(entry, kind, layer)
            if own[0] in there:
                transposed = entry.transposed and kind == "weight"
                stream = _stream_axis(own[0]) if halved else None
                assert stream != 0 or len(own) == 1, "the rows of several cannot lie along one residual stream"
                shapes_there = tuple(there[name] for name in own)
                extras = groups, entry.unread_rows, entry.row, entry.optional
                block.append(Link(own, shapes_there, foreign, transposed, stream, *extras))
        spelled_out += block
        if not block or ".N." not in entry.foreign:
            return spelled_out
    raise AssertionError("unreachable")


def _stream_axis(name: str) -> int | None:
    """Which axis of an own tensor lies along the residual stream, if one does."""
    module, kind = name.split(".")[-2:]
    if module in ("norm", "output", "down"):
        return 0  # what is normalized, or written
    if module in ("query_norm", "key_norm") or kind == "bias":
        return None  # inside of a part
    return 1  # rows of a table, and what a map reads
