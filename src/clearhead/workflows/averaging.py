"""Checkpoint averaging: the mean of the last checkpoints replaces the best one if the option is set and it is better.

Late in training, weights move around a valley's floor; their mean has a lower loss (Vaswani et al. 2017, section 6.1,
take the last 5; Izmailov et al. 2018, arXiv 1803.05407).
"""

import math

from clearhead.config import RunConfig
from clearhead.models import LanguageModel
from clearhead.training import Notice, checkpoints
from clearhead.workflows.events import Observer, WeightsAveraged
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.tasks import Task


def use_mean(
    run: RunFolder, model: LanguageModel, task: Task, config: RunConfig, on_event: Observer
) -> WeightsAveraged:
    """Make the mean of the last `average_checkpoints` the run's model, unless the best one's loss is lower."""
    best = checkpoints.best(run.checkpoints)
    lowest = checkpoints.read_state(best.path).best_loss if best else None
    for notice in checkpoints.faults(run.checkpoints):
        on_event(Notice(notice))
    count = checkpoints.load_mean(
        run.checkpoints, model, config.train.average_checkpoints, every=config.train.save_every
    )
    loss = task.evaluate(model, config).loss
    used = math.isfinite(loss) and (lowest is None or loss < lowest)
    if used:
        run.save_model(model, task.special_tokens, step=config.train.steps)
    return WeightsAveraged(config.train.steps, loss, count, used)
