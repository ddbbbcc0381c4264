"""What can be learned: an objective over prepared data is a task. A new objective is a file here and a line below."""

from pathlib import Path

from clearhead.config import RunConfig
from clearhead.workflows.tasks.masked import Masked
from clearhead.workflows.tasks.next_token import NextToken
from clearhead.workflows.tasks.task import Batches, Example, Progress, Task
from clearhead.workflows.tasks.translation import SOURCE_TOKENIZER, Translation, load_tokenizers

TASKS: dict[str, type[Task]] = {
    "next": NextToken,
    "masked": Masked,
    "translation": Translation,
}


def open_task(config: RunConfig, *, folder: Path | None = None, on_progress: Progress | None = None) -> Task:
    """Prepare the data for what the config is to learn, with the tokenizers of a run's folder where one is given.

    Raises:
        DataError: the data cannot be had, or used.
    """
    return TASKS[config.objective].open(config.data, folder=folder, on_progress=on_progress)


__all__ = [
    "SOURCE_TOKENIZER",
    "TASKS",
    "Batches",
    "Example",
    "Masked",
    "NextToken",
    "Progress",
    "Task",
    "Translation",
    "load_tokenizers",
    "open_task",
]
