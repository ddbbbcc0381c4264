"""Blocks that are the same, told once: 'blocks 1 to 3: the same, 13 steps each'."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clearhead.wording import counted

if TYPE_CHECKING:
    from clearhead.inspection.steps.table import TraceStep


@dataclass(frozen=True)
class Repeats:
    """Blocks that do the same as the one before them.

    Args:
        stack: path of what holds the blocks.
        first, last: their numbers.
        steps: of each.
    """

    stack: str
    first: int
    last: int
    steps: int

    @property
    def sentence(self) -> str:
        """What a table says in their place."""
        stack = f"{self.stack}." * bool(self.stack)
        if self.first == self.last:
            return f"{stack}{self.first}: the same {counted(self.steps, 'step')}"
        return f"{stack}{self.first} to {self.last}: the same, {counted(self.steps, 'step')} each"


def folded(steps: Sequence["TraceStep"]) -> "Iterator[TraceStep | Repeats]":
    """The steps, with one entry for blocks that repeat the one before them."""
    blocks = [_block(step.module) for step in steps]
    begins: dict[tuple[str, int], int] = {}
    for index, block in enumerate(blocks):
        if block is not None:
            begins.setdefault(block, index)
    position = 0
    while position < len(steps):
        block = blocks[position]
        end = position if block is None else begins.get((block[0], block[1] + 1), position)
        if block is None or begins[block] != position or end <= position:
            yield steps[position]
            position += 1
            continue
        yield from steps[position:end]
        length, repeats = end - position, 0
        unit = [_anywhere(step) for step in steps[position:end]]
        while begins.get((block[0], block[1] + repeats + 1)) == end and unit == [
            _anywhere(step) for step in steps[end : end + length]
        ]:
            repeats += 1
            end += length
        if repeats:
            yield Repeats(block[0], block[1] + 1, block[1] + repeats, length)
        position = end


def _block(module: str) -> tuple[str, int] | None:
    """The stack and the number of the block that a module is in: of the first number in its path."""
    parts = module.split(".")
    index = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
    return None if index is None else (".".join(parts[:index]), int(parts[index][:9]))


def _anywhere(step: "TraceStep") -> "TraceStep":
    """The step, as in any block."""
    block = _block(step.module)
    if block is None:
        return step
    stack, index = block
    return replace(step, module=f"{stack}.*{step.module[len(stack) + len(str(index)) + 1 :]}")
