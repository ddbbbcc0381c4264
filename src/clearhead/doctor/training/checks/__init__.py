"""The checks of a training, in the order in which they are made: what a failure would falsify comes after it."""

from clearhead.doctor.training.checks.asking import asking
from clearhead.doctor.training.checks.base import TrainingCheck
from clearhead.doctor.training.checks.batches import batches
from clearhead.doctor.training.checks.coverage import coverage
from clearhead.doctor.training.checks.effects import effects
from clearhead.doctor.training.checks.gradients import cleared, graph, numbers
from clearhead.doctor.training.checks.modes import modes
from clearhead.doctor.training.checks.movement import movement
from clearhead.doctor.training.checks.order import clipping, scheduling
from clearhead.doctor.training.checks.settings import settings
from clearhead.doctor.training.checks.totals import totals

TRAINING_CHECKS = (
    TrainingCheck("I06", "graph", ("I06",), graph),
    TrainingCheck("R02", "numbers", ("R01", "R02"), numbers, ("graph",)),
    TrainingCheck("T01", "cleared", ("T01", "T02", "T11"), cleared, ("graph",)),
    TrainingCheck("O01", "coverage", ("O01", "O02", "O16", "O17", "O14", "E01"), coverage, ("graph",)),
    TrainingCheck("T07", "movement", ("T07", "O07", "O12", "O13", "R05"), movement, ("graph", "numbers", "cleared")),
    TrainingCheck("T05", "clipping", ("T04", "T05"), clipping),
    TrainingCheck("O09", "scheduling", ("O08", "O09", "O15"), scheduling),
    TrainingCheck("T06", "modes", ("T06", "V02"), modes),
    TrainingCheck("O03", "settings", ("O03", "O05", "O06"), settings),
    TrainingCheck("D17", "batches", ("D17", "D18"), batches),
    TrainingCheck(
        "D02", "asking", ("D01", "D02", "D04", "D05", "D12", "L02", "L03", "L04", "L05", "L07", "M01"), asking
    ),
    TrainingCheck("T03", "totals", ("T03", "L01", "L10"), totals, ("asking",)),
    TrainingCheck("A13", "effects", ("I06", "A13"), effects, ("graph", "coverage")),
)
