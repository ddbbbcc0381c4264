"""A person's mistakes. Each carries one sentence that says what is wrong, where, and what to do, and an exit code.

Programming errors are asserts and ordinary exceptions; they keep their traceback.
"""


class ClearheadError(Exception):
    """The run failed for a reason a person can act on; the message is the one sentence they read."""

    exit_code = 1


class UsageError(ClearheadError):
    """An option, a combination of options or an argument that cannot be."""

    exit_code = 2


class InputError(UsageError, ValueError):
    """Token ids that a model cannot read. Also a ValueError, which is what callers of any model look for."""


class DataError(ClearheadError):
    """A text, a model file or a run folder that cannot be used."""

    exit_code = 3


class FaultError(ClearheadError):
    """The doctor proved that the model or the training set-up is wrong."""

    exit_code = 4


class InterruptedRunError(ClearheadError):
    """Stopped by Ctrl-C or SIGTERM, after saving."""

    exit_code = 130


class OutputError(ClearheadError):
    """What is shown can no longer be written: nobody reads it (`nobody_reads`), or there is no room for it."""

    def __init__(self, sentence: str, *, nobody_reads: bool = False) -> None:
        super().__init__(sentence)
        self.nobody_reads = nobody_reads
