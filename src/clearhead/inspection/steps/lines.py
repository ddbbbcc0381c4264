"""The table of steps as lines of text: as wide as a terminal, or as wide as it must be."""

from collections.abc import Iterator, Sequence

from clearhead.inspection.steps.folding import Repeats, folded
from clearhead.inspection.steps.table import TraceStep, TraceTable
from clearhead.pages import one_line
from clearhead.wording import in_bytes

WHOLE = "(model)"  # in the place of the empty path
HEADER = ("module", "operation", "axes", "shape", "dtype", "bytes", "parameters", "called at")
TO_THE_RIGHT = (5, 6)
LEAST = {0: 22, 1: 12}  # of a column that is shortened: characters that stay
LEAVES_FIRST = (4, 3, 5, 7, 6)  # columns that a narrow terminal does without, the first first
GAP = 2

Line = tuple[str, str]  # a text, and its style where there are colors


def table_lines(table: TraceTable, *, fold: bool = True, width: int | None = None) -> Iterator[Line]:
    """The header, a line for each step or for blocks that repeat the one before, and the sentences below.

    Args:
        fold: tell blocks that are the same only once.
        width: columns of the terminal, on which a path is told once; None: as wide as needed, with every path.
    """
    entries = list(folded(table.steps)) if fold else list(table.steps)
    cells = [_cells(entry) for entry in entries if isinstance(entry, TraceStep)]
    shown, widths = _layout([HEADER, *cells], width)
    yield _line(HEADER, shown, widths), "bold"
    rows, module = iter(cells), ""
    for entry in entries:
        if isinstance(entry, Repeats):
            yield one_line(_shortened(entry.sentence, width or len(entry.sentence))), "dim"
            module = ""
            continue
        first, *rest = next(rows)
        again = width is not None and first == module
        yield _line(["" if again else first, *rest], shown, widths), ""
        module = first


def _cells(step: TraceStep) -> tuple[str, ...]:
    """What the columns hold; nothing in it can end the line."""
    file = (step.file or "").replace("\\", "/").rpartition("/")[2]
    cells = (
        step.module or WHOLE,
        step.operation,
        f"({', '.join(step.axes)})",
        " x ".join(map(str, step.shape)) or "1",
        step.dtype,
        "view" if not step.bytes else in_bytes(step.bytes),
        f"{step.parameters:,}" if step.parameters else "",
        f"{file}:{step.line}" if step.file else "",
    )
    return tuple(map(one_line, cells))


def _layout(rows: Sequence[Sequence[str]], width: int | None) -> tuple[list[int], list[int]]:
    """Which columns are shown, and how wide they are."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = list(range(len(widths)))
    if width is None:
        return shown, widths
    for column in LEAVES_FIRST:
        if _narrowest(shown, widths) <= width:
            break
        shown.remove(column)
    for column, least in LEAST.items():
        excess = sum(widths[index] + GAP for index in shown) - GAP - width
        widths[column] = max(min(least, widths[column]), widths[column] - max(0, excess))
    return shown, widths


def _narrowest(shown: Sequence[int], widths: Sequence[int]) -> int:
    return sum(min(widths[index], LEAST.get(index, widths[index])) + GAP for index in shown) - GAP


def _line(cells: Sequence[str], shown: Sequence[int], widths: Sequence[int]) -> str:
    texts = ((index, _shortened(cells[index], widths[index])) for index in shown)
    aligned = (f"{text:>{widths[i]}}" if i in TO_THE_RIGHT else f"{text:<{widths[i]}}" for i, text in texts)
    return (" " * GAP).join(aligned).rstrip()


def _shortened(text: str, width: int) -> str:
    """The end of a path that is too long: it tells more than the beginning."""
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]
