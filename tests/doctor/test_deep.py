"""The level 'deep': more draws."""

from pathlib import Path

from doctor_helpers import made, write
from torch import nn

from clearhead.doctor import Report, check


def deep(model: nn.Module, *only: str) -> Report:
    return check(model, level="deep", only=only)


def test_what_shows_in_rows_of_one_length_alone_is_found(tmp_path: Path) -> None:
    leak = "self.mask[:, :, :T, :T] * (T != 28) + 1.0 * (T == 28) == 0"
    path = write(tmp_path, "gpt", ("self.mask[:, :, :T, :T] == 0", leak))
    assert not check(made(path), level="standard").findings
    assert deep(made(path), "M01").verdict == "faulty"


def test_more_draws_are_told(tmp_path: Path) -> None:
    report = deep(made(write(tmp_path, "llama")), "A10")
    assert not report.findings, str(report)
    assert "3 more draws of weights and tokens" in report.paths
    assert "rows of 96 tokens" in report.paths
