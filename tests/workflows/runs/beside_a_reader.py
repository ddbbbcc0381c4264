"""Saves a run's model again and again, each time another one. Run by test_run_integrity.py in a process of its own."""

import sys
from pathlib import Path

import torch

from clearhead.models import LanguageModel
from clearhead.workflows import Run


def save_again(run: Run, model: LanguageModel, step: int) -> None:
    """As a training does that finds a better one."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    run.save_model(model, run.task().special_tokens, step=step)


def main() -> None:
    folder, saves = sys.argv[1:]
    run = Run(Path(folder))
    model = run.model()
    for step in range(int(saves)):
        save_again(run, model, step)


if __name__ == "__main__":
    main()
