"""Help that fits the terminal: two columns where there is room, lines under each other where there is not."""

import argparse
import shutil
import textwrap
from collections.abc import Iterable

WIDEST, NARROWEST = 110, 40  # columns
WIDEST_FLAG = 34


def width() -> int:
    """The columns that help may take: the terminal's, or those of COLUMNS."""
    return max(NARROWEST, min(shutil.get_terminal_size().columns - 1, WIDEST))


def aligned(rows: Iterable[tuple[str, str]], mark: str = "# ") -> str:
    """Two columns, the second behind a mark; where the first leaves no room for it, it stands under the first."""
    rows = list(rows)
    longest = max(len(left) for left, _ in rows)
    indent = longest + 4
    beside = indent + max(len(mark + right) for _, right in rows) <= width() or indent <= width() // 3
    return "\n".join(
        f"  {left:<{longest}}  {_filled(mark + right, indent).lstrip()}"
        if beside
        else f"  {left}\n{_filled(mark + right, 6)}"
        for left, right in rows
    )


def _filled(text: str, indent: int) -> str:
    margin = " " * indent
    return textwrap.fill(text, width(), initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)


class HelpFormatter(argparse.HelpFormatter):
    """argparse's, as wide as the terminal, with an option's value once behind all of its names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=min(WIDEST_FLAG, width() // 2), width=width())

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)  # a flag stays whole

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, action.dest.upper())
        return f"{', '.join(action.option_strings)} {value}".rstrip()
