"""A person's mistakes. Each carries one sentence that says what is wrong, where, and what to do, and an exit code.

Programming errors are asserts and ordinary exceptions; they keep their traceback.
"""

TYPE_CHECKING = False  # `traceback` takes a while to load
if TYPE_CHECKING:
    from collections.abc import Iterator


class ClearheadError(Exception):
    """The run failed for a reason a person can act on; the message is the one sentence they read.

    `below`: lines to paste that the sentence ends with. They are shown as they are, each on a line of its own.
    """

    exit_code = 1

    def __init__(self, *args: object, below: str = "") -> None:
        super().__init__(*args)
        self.below = below

    def __str__(self) -> str:
        return super().__str__() + self.below

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in the place of a traceback: the lines of the person's own code, and the sentence.

        `%debug` and `sys.last_exc` have the rest.
        """
        from clearhead.pages import one_line  # loads what an error that nobody renders does not need

        sentence = f"{type(self).__name__}: {str(self).removesuffix(self.below)}"
        return [
            *(one_line(line) for line in (*_own_lines(self), sentence)),
            *map(one_line, self.below.splitlines()[1:]),
        ]


class UsageError(ClearheadError):
    """An option, a combination of options or an argument that cannot be."""

    exit_code = 2


class ArgumentError(UsageError, TypeError):
    """An argument that a function does not have or cannot use. Also a TypeError, which is what Python raises then."""


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


class SilentExit(SystemExit):
    """The end of a process that has nothing to say, because another one of the same training has said why.

    Attributes:
        sentence: what this one knows of it, for `--json`, whose object is due in any case.
    """

    def __init__(self, exit_code: int, sentence: str = "") -> None:
        super().__init__(exit_code)
        self.exit_code, self.sentence = exit_code, sentence


def _own_lines(error: BaseException) -> "Iterator[str]":
    """The lines of the person's own code that led to an error, the innermost last."""
    import os
    import sysconfig
    from traceback import extract_tb

    libraries = (os.path.dirname(__file__), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
    for frame in extract_tb(error.__traceback__):
        if frame.filename.startswith(tuple(folder + os.sep for folder in libraries)) or "-packages" in frame.filename:
            continue
        file = f"{frame.filename}, " if os.path.exists(frame.filename) else ""  # a notebook's cell is no file
        yield f"{file}line {frame.lineno}: {frame.line}"
