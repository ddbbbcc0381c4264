"""Compare texts with what a run was trained on: what is copied."""

from collections.abc import Sequence
from pathlib import Path

from clearhead.errors import UsageError
from clearhead.inspection import Memorization, measure_memorization
from clearhead.workflows.runs.find import open_folder
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.tasks import CausalTask


def memorization(run: str | Path | RunFolder | None, texts: str | Sequence[str], *, n: int = 20) -> Memorization:
    """Which share of the n-grams of texts, such as `run.generate` returns, is in the run's training text.

    Args:
        run: a folder, a name, or None for the newest; one that was trained on a text.
        texts: one or several.
        n: tokens of an n-gram.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    opened = open_folder(run)
    task = opened.task()
    if not isinstance(task, CausalTask):
        raise UsageError(f"{opened.folder} was trained on sentence pairs; `memorization` compares with a training text")
    ids = [task.tokenizer.encode(text).tolist() for text in ([texts] if isinstance(texts, str) else texts)]
    copied = measure_memorization(task.prepared.train, ids, n=n)
    span = ids[copied.text][copied.start : copied.start + copied.longest]
    return copied.named(task.tokenizer.decode(span))
