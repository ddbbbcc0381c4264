"""What a word of the command line may become: read from the verbs' own parsers, and from the runs that there are."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import pairwise

from clearhead.cli.arguments import Parser
from clearhead.cli.command import HELP_FLAGS, VERBS, module_of

Candidates = Mapping[str, str]  # words, each with a line about it


def candidates(typed: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What the last of the words behind `clearhead` may become; nothing where only a file or a text can follow."""
    parts = [word for word in typed if word != "="]  # bash makes three words of --flag=value
    before, current = parts[:-1], parts[-1] if parts else ""
    flag, equals, beginning = current.partition("=")
    if equals and flag.startswith("-"):
        for value, about in _following([*before, flag], beginning, assigned=True).items():
            if value.startswith(beginning):
                yield f"{flag}={value}", about
        return
    for word, about in _following(before, current).items():
        if word.startswith(current):
            yield word, about


def _following(before: list[str], current: str, *, assigned: bool = False) -> Candidates:
    """All that may come after these words, where the next begins as `current` does, or is `assigned` to the last."""
    if not before:
        return {**VERBS, "help": "list the options of a verb"}
    if before[0] in HELP_FLAGS:
        return VERBS if len(before) == 1 else {}
    if before[0] not in VERBS:
        return {}
    parser: Parser = import_module(module_of(before[0])).parser()
    flags = {name: action for action in parser._actions for name in action.option_strings}
    if before[-1] in flags and (assigned or _takes_value(parser, before[-1], flags)):
        return _values(parser, flags[before[-1]])
    if current.startswith("-"):
        return {_longest(action): _about(action) for action in flags.values() if action.help != argparse.SUPPRESS}
    places = parser._get_positional_actions()
    number = sum(not word.startswith("-") and not _takes_value(parser, last, flags) for last, word in pairwise(before))
    return _values(parser, places[number]) if number < len(places) else {}


def _takes_value(parser: Parser, word: str, flags: Mapping[str, argparse.Action]) -> bool:
    return word in flags and flags[word].nargs is None and word not in parser.switches


def _longest(action: argparse.Action) -> str:
    return max(action.option_strings, key=len)


def _about(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")


def _values(parser: Parser, action: argparse.Action) -> Candidates:
    """The values that an argument may have, where they are known."""
    name = _longest(action) if action.option_strings else action.dest
    if name in KNOWN:
        return KNOWN[name]()
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    braced = metavar[1:-1].split(",") if metavar.startswith("{") else ()
    return dict.fromkeys(parser.values.get(action.dest) or braced, "")


def _runs() -> Candidates:
    from clearhead.workflows.runs.paths import run_folders

    return {str(folder): "" for folder in run_folders()}


def _presets() -> Candidates:
    from clearhead.config import PRESETS

    return {name: entry.about for name, entry in PRESETS.items()}


def _corpora() -> Candidates:
    from clearhead.data import CORPORA, PAIR_CORPORA

    return {name: corpus.about for name, corpus in (CORPORA | PAIR_CORPORA).items()}


KNOWN: dict[str, Callable[[], Candidates]] = {  # positional arguments and flags
    "run": _runs,
    "target": _runs,
    "source": _corpora,
    "--from": _runs,
    "--preset": _presets,
}
