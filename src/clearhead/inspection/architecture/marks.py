"""Marks: what somebody says of parts of a model, such as the doctor, in their places on the picture."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from clearhead.inspection.architecture.graph import ArchitectureGraph
from clearhead.pages import text
from clearhead.wording import counted

BLOCK = re.compile(r"(.+\.blocks)\.\d+")  # a stack's blocks are drawn as the first of them
SEVEREST = ("fail", "warn", "pass")


@dataclass(frozen=True)
class Mark:
    """What is said of a part.

    Attributes:
        module: its path, as `named_modules` has it; empty where another part, or the whole model, is meant.
        status: how bad it is.
        title: what is said, in a few words.
        sentence: the reason.
        kinds: of the boxes that are meant, where no module is.
    """

    module: str
    status: Literal["fail", "warn", "pass"]
    title: str
    sentence: str = ""
    kinds: tuple[str, ...] = ()

    def html(self) -> str:
        """As a paragraph, without its place."""
        return f'<p class="mark {self.status}"><b>{self.status}</b> {text(self.title)}: {text(self.sentence)}</p>'


Places = Mapping[str, Sequence[Mark]]  # by the name of a box; what no box stands for has an empty name


def placed(marks: Sequence[Mark], graph: ArchitectureGraph) -> Places:
    """Each mark at its boxes, the severest first: the innermost one that its module lies in, or all of its kinds."""
    places: dict[str, list[Mark]] = {}
    for mark in sorted(marks, key=lambda mark: SEVEREST.index(mark.status)):
        for name in _boxes(mark, graph):
            places.setdefault(name, []).append(mark)
    return places


def _boxes(mark: Mark, graph: ArchitectureGraph) -> Sequence[str]:
    if mark.module or not mark.kinds:
        return [_innermost(mark.module, graph)]
    return [name for name, node in graph.nodes.items() if node.kind in mark.kinds] or [""]


def _innermost(module: str, graph: ArchitectureGraph) -> str:
    """The box of a part: its own, its sublayer's card, or its block's badge; empty if there is none."""
    path = BLOCK.sub(r"\1.0", module)
    badges = {f"{column.stack}.blocks" for column in graph.columns if column.sublayers}
    while path:
        for name in (path, f"{path}.part"):
            if name in graph.nodes or name in badges:
                return name
        path = path.rpartition(".")[0]
    return ""


def spoken(marks: Sequence[Mark]) -> str:
    """The marks of a box, for those who hear the picture."""
    return "".join(f"; {part}" for part in _spoken(marks))


def _spoken(marks: Sequence[Mark]) -> Iterator[str]:
    passed = [mark for mark in marks if mark.status == "pass"]
    yield from (f"{mark.status}: {mark.title}" for mark in marks if mark not in passed)
    if passed:
        yield f"{counted(len(passed), 'check')} passed"
