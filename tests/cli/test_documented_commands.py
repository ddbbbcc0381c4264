"""Every command that README and the pages print is one that the command line understands."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from clearhead.cli import VERBS, module_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"^ {4}(?:\$ )?clearhead (.+)|^\$ clearhead (.+)")
SHELL = re.compile(r"\s(?:[|>]|>>|<)\s.*")  # what the shell does with the output
CHOICE = re.compile(r"(\w+)(?:\|\w+)+")  # of several values, the first


def commands() -> list[tuple[str, str]]:
    """The page and the words behind `clearhead`, each once."""
    matches = [
        (page.name, match[1] or match[2])
        for page in PAGES
        for match in map(COMMAND.match, page.read_text(encoding="utf-8").splitlines())
        if match
    ]
    return list(dict.fromkeys(matches))


def test_there_are_commands() -> None:
    assert len(commands()) > 60


@pytest.mark.parametrize(("page", "command"), commands())
def test_a_printed_command_is_understood(page: str, command: str) -> None:
    arguments = shlex.split(CHOICE.sub(r"\1", SHELL.sub("", command)), comments=True)
    assert arguments[0] in VERBS, page
    import_module(module_of(arguments[0])).parser().parse(arguments[1:])
