"""How a check of a training is registered, and how it comes to one finding."""

from collections.abc import Iterator
from itertools import chain, islice

from clearhead.doctor.checks.base import Registry
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.recording import Recording

training_check = Registry[Recording]()


def first_of(*questions: Iterator[Finding]) -> list[Finding]:
    """The first finding of several questions, in a list; those after it are not asked."""
    return [*islice(chain.from_iterable(questions), 1)]
