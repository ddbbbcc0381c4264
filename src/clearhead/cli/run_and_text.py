"""A run and a text: what the verbs are given that let a model read or continue one."""

import argparse
import os

from clearhead.cli.arguments import Parser
from clearhead.cli.output import notice
from clearhead.cli.standard_input import piped_text, short_text
from clearhead.errors import DataError
from clearhead.pages import one_line
from clearhead.suggestions import did_you_mean
from clearhead.wording import call


def add_run_and_text(parser: Parser, name: str, about: str) -> None:
    """The two, both optional; a text of several words that lacks its quotes is noticed."""
    parser.add_argument("run", nargs="?", help="a run's folder or name (default: the newest)")
    parser.add_argument(name, nargs="?", help=about)
    parser.text = name


def run_and_text(args: argparse.Namespace, verb: str, name: str) -> tuple[str | None, str | None]:
    """The run, None for the newest, and the text: that of the argument, else what is piped in.

    Raises:
        DataError: two words, of which the first is no run.
    """
    which, text = split_run_and_text(args, verb, name)
    return which, short_text(name) if text == "-" else piped_text(name) if text is None else text


def split_run_and_text(args: argparse.Namespace, verb: str, name: str) -> tuple[str | None, str | None]:
    """The two arguments as they were typed; a single one is a run if there is one of that name, else the text.

    Raises:
        DataError: two words, of which the first is no run.
    """
    from clearhead import workflows

    first, second = getattr(args, "run", None), getattr(args, name, None)
    if first is not None and second is not None and os.path.basename(first) == first:
        try:
            workflows.load(first)
        except DataError as error:
            if os.path.exists(first):
                raise
            if second in [run.name for run in workflows.all_runs()] or os.path.isdir(second):
                raise DataError(f"{error}; the run comes first: {call(verb, second, first)}") from None
            both = call(verb, f"{first} {second}")
            raise DataError(f"{error}; a text of several words goes in quotes: {both}") from None
    which, text = workflows.run_and_text(first, second)
    is_word = which is None and text is not None and text != "-" and " " not in text
    if is_word and (meant := did_you_mean(text or "", [run.name for run in workflows.all_runs()])):
        notice(f"there is no run {one_line(text or '')}, so it is read as a text{meant}")
    return which, text
