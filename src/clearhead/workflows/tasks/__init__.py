"""What can be learned: an objective over prepared data is a task. A new objective is a file here and a line below."""

from clearhead.config import RunConfig
from clearhead.workflows.tasks.causal import CausalTask
from clearhead.workflows.tasks.masked import MaskedTask
from clearhead.workflows.tasks.task import Batches, Example, Progress, Task, Tokenizers
from clearhead.workflows.tasks.translation import SOURCE_TOKENIZER, TranslationTask, load_tokenizers

TASKS: dict[str, type[Task]] = {
    "causal": CausalTask,
    "masked": MaskedTask,
    "seq2seq": TranslationTask,
}


def open_task(config: RunConfig, *, tokenizers: Tokenizers | None = None, on_progress: Progress | None = None) -> Task:
    """Prepare the data for what the config is to learn, with a trained model's tokenizers where they are given.

    Raises:
        DataError: the data cannot be had, or used.
    """
    return TASKS[config.objective].open(config.data, tokenizers=tokenizers, on_progress=on_progress)


__all__ = [
    "SOURCE_TOKENIZER",
    "TASKS",
    "Batches",
    "CausalTask",
    "Example",
    "MaskedTask",
    "Progress",
    "Task",
    "Tokenizers",
    "TranslationTask",
    "load_tokenizers",
    "open_task",
]
