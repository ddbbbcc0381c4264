"""The checks of a training, in the order in which they are made, each registered where it is written."""

from clearhead.doctor.checks.base import load_all
from clearhead.doctor.training.checks.base import training_check

load_all(__name__, __path__)
TRAINING_CHECKS = training_check.in_order()
