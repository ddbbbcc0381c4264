import os
import sys
from pathlib import Path

import pytest
import torch
from child_processes import finish
from kill_campaign import train_to

from clearhead.training import checkpoints

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kill -9 needs POSIX")


@pytest.mark.parametrize(
    ("optimizer", "kills", "seed"),
    [
        ("muon", 4, 0),
        pytest.param("adamw", 60, 1, marks=pytest.mark.campaign),
        pytest.param("muon", 60, 2, marks=pytest.mark.campaign),
    ],
)
def test_killed_at_random_moments_a_training_ends_where_the_undisturbed_one_ends(
    optimizer: str, kills: int, seed: int, tmp_path: Path
) -> None:
    killed_folder, whole_folder = tmp_path / "killed", tmp_path / "whole"
    script = Path(__file__).with_name("kill_campaign.py")
    arguments = [str(killed_folder), optimizer, str(kills), str(seed)]
    result = finish([sys.executable, str(script), *arguments], timeout=600)
    assert result.returncode == 0, result.stderr
    steps = int(result.stdout)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train_to(steps, whole_folder, optimizer)
    finally:
        torch.set_num_threads(threads)
    killed, whole = checkpoints.newest(killed_folder), checkpoints.newest(whole_folder)
    assert killed is not None
    assert whole is not None
    assert killed.path.name == whole.path.name == f"step-{steps:08d}"
    # the manifest holds the SHA-256 of weights, optimizer and state
    assert (killed.path / "manifest.json").read_bytes() == (whole.path / "manifest.json").read_bytes()
    assert names(killed_folder) == names(whole_folder)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
