"""The pages of a training: samples.md and report.html."""

import json
from pathlib import Path

import pytest
from workflow_helpers import STEPS, trained

from clearhead.workflows import resume
from clearhead.workflows.runs.report import facts_of, summary


def test_samples_can_be_looked_at_in_a_terminal() -> None:
    """A text, and a name, with what a terminal would obey, and with what would end the block of code."""
    hostile = "\x1b]0;title\x07 \x9b31m \u202e ```` end\n```\nafter"
    finished = trained()
    with finished.metrics.open("a", encoding="utf-8") as log:
        for record in ({"kind": "origin", "from": "a\n\x1b[31m"}, {"kind": "sample", "text": hostile}):
            log.write(json.dumps({"step": 0, **record}) + "\n")
    resume(finished)
    for name in ("samples.md", "report.html"):
        text = (finished.folder / name).read_text(encoding="utf-8")
        assert not set(text) & {chr(code) for code in (*range(9), 11, 12, *range(14, 32), *range(127, 160), 0x202E)}
    samples = (finished.folder / "samples.md").read_text(encoding="utf-8")
    assert "\n`````text\n␛]0;title␇ �31m � ```` end\n```\nafter\n`````\n" in samples
    assert "as it came from a\\n\\x1b[31m\n" in samples
    assert Path(finished.folder / "report.html").stat().st_size < 100_000


@pytest.mark.parametrize(
    ("steps", "averaged"), [(1, "1 step"), (39, "39 steps"), (50, "50 steps"), (51, "the last 50 steps")]
)
def test_a_training_loss_says_of_how_many_steps_it_is_the_mean(steps: int, averaged: str) -> None:
    facts = dict(facts_of({"train_loss": 2.5, "steps": steps}))
    assert facts["training loss at the end"] == f"2.5000, mean of {averaged}"


def test_it_is_the_mean_of_these_steps() -> None:
    finished = trained()
    mean = sum(row["train_loss"] or 0.0 for row in finished.history) / STEPS
    facts = dict(facts_of(summary(finished)))
    assert facts["training loss at the end"] == f"{mean:.4f}, mean of {STEPS} steps"
