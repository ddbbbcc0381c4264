"""The level 'deep': bfloat16."""

from pathlib import Path

from doctor_helpers import made, write
from torch import nn

from clearhead.doctor import Report, check


def deep(model: nn.Module, *only: str) -> Report:
    return check(model, level="deep", only=only)


ROUNDED = (
    ("turned = positions[:, None].float() * inverse[None, :]",
     "turned = positions[:, None].to(DTYPE) * inverse[None, :].to(DTYPE)"),
    ("def angles(positions):", "DTYPE = torch.float32\n\n\ndef angles(positions):"),
    ("        x = self.embed(tokens)\n",
     "        global DTYPE\n        DTYPE = self.embed.weight.dtype\n        x = self.embed(tokens)\n"),
)  # fmt: skip


def test_positions_that_are_rounded_grow_worse_and_healthy_ones_do_not(tmp_path: Path) -> None:
    assert not deep(made(write(tmp_path, "llama")), "R03").findings
    report = deep(made(write(tmp_path, "llama", *ROUNDED)), "R03")
    assert report["R03"].status == "warn", str(report)
    assert "bfloat16 moves logits by" in report["R03"].evidence.witness


def test_a_number_that_half_precision_cannot_hold(tmp_path: Path) -> None:
    path = write(tmp_path, "gpt", ('float("-inf")', '-3.4e38 if att.dtype == torch.float32 else float("nan")'))
    assert deep(made(path), "M09")["M09"].status == "warn"
