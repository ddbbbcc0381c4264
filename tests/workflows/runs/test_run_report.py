"""The pages of a training: samples.md and report.html."""

import json
from pathlib import Path

from workflow_helpers import trained

from clearhead.workflows import resume


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
