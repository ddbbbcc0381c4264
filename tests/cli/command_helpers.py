"""The command, called as a person calls it, with what it printed."""

import json
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from clearhead import cli

SMALL = ["--model.n_layers", "1", "--model.n_heads", "2", "--model.d_model", "16"]
QUICK = ["--train.batch_size", "4", "--train.threads", "1", "--train.steps", "4"]
TINY = [*SMALL, *QUICK]
COMMANDS = Path(__file__).parents[2] / "docs" / "commands.md"
WORDS = ["the", "a", "king", "queen", "says", "goes", "home", "and", "not;", "with", "little", "river.", "stone\n"]


class Called(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON object and nothing else."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        assert self.out.count("\n") == 1
        return value


class Caller:
    """Calls the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *argv: str) -> Called:
        self.capsys.readouterr()
        code = cli.run(list(argv))
        return Called(code, *self.capsys.readouterr())


def text(characters: int) -> str:
    draw, prose = random.Random(0), ""
    while len(prose) < characters:
        prose += draw.choice(WORDS) + " "
    return prose[:characters]


def write_text(characters: int = 900, name: str = "my.txt") -> Path:
    path = Path(name)
    path.write_text(text(characters), encoding="utf-8")
    return path


def documented(verb: str) -> set[str]:
    """The keys that the page about commands names for a verb, but for those of objects inside."""
    row = re.search(rf"^\| `{verb}` \| (`.*) \|$", COMMANDS.read_text(encoding="utf-8"), re.MULTILINE)
    assert row, f"no row for {verb}"
    return set(re.findall(r"`(\w+)`", re.sub(r": for each [^;]*", "", re.sub(r"\([^)]*\)", "", row[1]))))
