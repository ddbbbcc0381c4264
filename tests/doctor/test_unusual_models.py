"""Healthy models of a make that a rule could take for a fault: each differs from a healthy host, and by design."""

from pathlib import Path
from typing import NamedTuple

import pytest
from doctor_helpers import made, write

from clearhead.doctor import check


class Unusual(NamedTuple):
    """`asked`: ids that a rule found here once."""

    about: str
    asked: tuple[str, ...]
    host: str
    changes: tuple[tuple[str, str], ...]


UNUSUAL = [
    Unusual(
        "an activation that works in place",
        ("F01",),
        "gpt",
        (("F.gelu(self.fc1(x))", "F.relu_(self.fc1(x))"),),
    ),
    Unusual(
        "a small embedding that is widened, and read by grouped keys before any norm",
        ("F01",),
        "llama",
        (
            (
                "        self.embed = nn.Embedding(V, D)\n",
                "        self.embed, self.wide = nn.Embedding(V, 8), nn.Linear(8, D)\n",
            ),
            ("self.embed(tokens)", "self.wide(self.embed(tokens))"),
            ("self.attention(self.attention_norm(x), past)", "self.attention(x, past)"),
            ("x = x + y\n", "x = self.attention_norm(x + y)\n"),
        ),
    ),
    Unusual(
        "rows that are shifted inside, and asked for their own tokens",
        ("M07", "D01", "D02"),
        "gpt",
        (
            (
                "        x = self.tok(idx) + self.pos(torch.arange(T))\n",
                "        x = F.pad(self.tok(idx)[:, :-1], (0, 0, 1, 0)) + self.pos(torch.arange(T))\n",
            ),
        ),
    ),
    Unusual(
        "buffers for eight rows and no more",
        ("A10", "P02", "M01"),
        "gpt",
        (
            (
                "        self.head.weight = self.tok.weight\n",
                "        self.head.weight = self.tok.weight\n        self.register_buffer('held', torch.zeros(8, BLOCK, D))\n",
            ),
            (
                "        for block in self.blocks:\n",
                "        self.held[: len(x), :T] = x.detach()\n        for block in self.blocks:\n",
            ),
        ),
    ),
]


@pytest.mark.parametrize("unusual", UNUSUAL, ids=lambda one: one.about)
def test_what_is_meant_so_is_no_fault(unusual: Unusual, tmp_path: Path) -> None:
    report = check(made(write(tmp_path, unusual.host, *unusual.changes)), only=unusual.asked)
    assert report.verdict == "healthy", str(report)
    assert not report.findings, str(report)
    looked = [one.status for one in report.checks if unusual.asked[0] in one.covers and one.status != "skip"]
    assert looked, str(report)
    assert {*looked} == {"pass"}, str(report)
