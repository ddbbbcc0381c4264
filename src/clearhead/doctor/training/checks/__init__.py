"""The checks of a training, in the order in which they are made, each registered where it is written."""

from collections.abc import Iterator
from itertools import chain, islice

from clearhead.doctor.checks.base import Finding, Registry, load_all
from clearhead.doctor.training.recording import Recording

training_check = Registry[Recording]()


def first_of(*questions: Iterator[Finding]) -> list[Finding]:
    """The first finding of several questions, in a list; those after it are not asked."""
    return [*islice(chain.from_iterable(questions), 1)]


load_all(__name__, __path__)
TRAINING_CHECKS = training_check.in_order()
