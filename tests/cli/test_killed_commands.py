"""kill -9 at random moments, also in the middle of a save: the run ends as if nothing had happened."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from child_processes import finish
from command_helpers import write_text

from clearhead.workflows.runs.records import MEASURED

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kill -9 needs POSIX")


@pytest.mark.parametrize(
    ("kills", "seed", "steps", "world_size", "parallel"),
    [
        (2, 0, 30, 1, "auto"),
        *(pytest.param(40, seed, 150, 1, "auto", marks=pytest.mark.campaign) for seed in (1, 2, 3)),
        *(pytest.param(40, 4, 400, 2, parallel, marks=pytest.mark.campaign) for parallel in ("ddp", "fsdp")),
    ],
)
@pytest.mark.timeout(3600)
def test_killed_at_random_moments_a_run_ends_like_the_undisturbed_one(
    kills: int, seed: int, steps: int, world_size: int, parallel: str
) -> None:
    write_text()
    script = Path(__file__).with_name("killed_commands.py")
    arguments = [sys.executable, str(script), *map(str, (kills, seed, steps, world_size)), parallel]
    result = finish(arguments, timeout=3400)
    assert result.returncode == 0, result.stderr
    done = json.loads(result.stdout)
    while_doing = Counter(done["killed"])
    print(dict(while_doing), "in", done["rounds"], "trainings")
    assert while_doing.total() == kills
    assert kills < 30 or min(while_doing["saving"], while_doing["training"]) > 0, "nothing was interrupted"
    for number in range(1, done["rounds"] + 1):
        assert_same(Path(f"killed-{number}"), Path("undisturbed"))


def assert_same(killed: Path, whole: Path) -> None:
    assert records(killed) == records(whole)
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert checkpoints(killed) == checkpoints(whole)  # all that are kept, byte for byte


def records(folder: Path) -> list[dict[str, object]]:
    """Every loss, rate and sample; only what is measured and the number of starts differ."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    whole = [record for record in lines if record["kind"] != "start"]
    return [{key: value for key, value in record.items() if key not in MEASURED} for record in whole]


def checkpoints(folder: Path) -> dict[str, bytes]:
    kept = (folder / "checkpoints").glob("step-*/*")
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}
