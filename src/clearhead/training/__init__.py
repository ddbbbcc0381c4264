"""Training: loss, optimizers, schedules, the loop (a generator of events) and checkpoints."""

from clearhead.training import checkpoints
from clearhead.training.events import Evaluated, Event, Notice, SaveDue, Stepped, TrainingState
from clearhead.training.loop import fit
from clearhead.training.lost_processes import ProcessLostError
from clearhead.training.optimizers import Optimizer, build_optimizer, check_optimizer
from clearhead.training.precision import autocast, has_bfloat16, resolve_precision
from clearhead.training.processes import Processes, alone, join_processes, launchers
from clearhead.training.schedules import SCHEDULES, learning_rate
from clearhead.training.sharding import build_sharded, gathered, is_sharded
from clearhead.training.train_step import is_out_of_memory

__all__ = [
    "SCHEDULES",
    "Evaluated",
    "Event",
    "Notice",
    "Optimizer",
    "ProcessLostError",
    "Processes",
    "SaveDue",
    "Stepped",
    "TrainingState",
    "alone",
    "autocast",
    "build_optimizer",
    "build_sharded",
    "check_optimizer",
    "checkpoints",
    "fit",
    "gathered",
    "has_bfloat16",
    "is_out_of_memory",
    "is_sharded",
    "join_processes",
    "launchers",
    "learning_rate",
    "resolve_precision",
]
