"""Stop a training between two steps, so that nothing is lost."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from clearhead.errors import InterruptedRunError, OutputError
from clearhead.training import Processes, ProcessLostError
from clearhead.workflows.events import Observer, WorkflowEvent
from clearhead.workflows.tasks import Batches

GRACEFUL_SIGNALS = 2  # signals that wait for the training to be saved; one more ends it at once


class Interruption:
    """Set when the training is to stop; `reason` says why, where it was not a person.

    A flag and no `threading.Event`: that takes a lock, and a signal that comes while it is taken would wait for itself.
    """

    def __init__(self) -> None:
        self.stop = False
        self.reason = ""

    def is_set(self) -> bool:
        """Whether the training is to stop."""
        return self.stop

    def set(self) -> None:
        """Request a stop."""
        self.stop = True


def interruptible_batches(
    interrupted: Interruption, batch: Batches, stop_file: Path, group: Processes | None = None
) -> Batches:
    """Batches until a stop is requested. It takes effect between steps, after the last step's events were delivered.

    Args:
        interrupted: the request of a signal or of an output that failed.
        batch: the batches of the training.
        stop_file: a file that requests a stop by being there; it is removed when it is seen.
        group: the processes that share the training, which all stop before the same step, also where one of them
            cannot read its batch: else it would save what the others go on to change.
    """
    group = group or Processes()

    def next_batch(step: int) -> Sequence[Tensor]:
        if group.is_first and stop_file.exists():
            stop_file.unlink(missing_ok=True)
            interrupted.stop, interrupted.reason = True, f"{stop_file} asked for it: "
        tensors, error = _attempt(batch, step)
        stop, failed = group.agree(interrupted.is_set(), 0 if error is None else 1 + group.rank)
        if stop:
            raise KeyboardInterrupt
        if error is not None and failed == 1 + group.rank:
            raise error
        if failed:
            raise ProcessLostError("another process of this training failed", speaker=failed - 1)
        return tensors

    return next_batch


def _attempt(batch: Batches, step: int) -> tuple[Sequence[Tensor], Exception | None]:
    """The batch of a step, or the reason why there is none."""
    try:
        return batch(step), None
    except Exception as error:
        return (), error


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Ctrl-C, SIGTERM and a closed terminal set the event, so that the step in progress can end and all is saved.

    A second signal often follows by itself, and saves as well; a third ends the process now.
    """
    interrupted = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    signals = 0

    def ask(number: int, frame: object) -> None:
        nonlocal signals
        signals += 1
        if signals > GRACEFUL_SIGNALS:
            raise SystemExit(InterruptedRunError.exit_code)
        interrupted.set()

    names = {"SIGINT", "SIGTERM", "SIGHUP"} & {number.name for number in signal.Signals}  # Windows has no SIGHUP
    heard = [signal.Signals[name] for name in names if signal.getsignal(signal.Signals[name]) is not signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in heard}  # what nohup ignores stays ignored
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_on_output_error(on_event: Observer, interrupted: Interruption) -> Observer:
    """Whoever watched may go away (a pipe is closed, a disk is full): then the training stops and saves."""

    def tell(event: WorkflowEvent) -> None:
        try:
            on_event(event)
        except (BrokenPipeError, OutputError) as error:
            if isinstance(error, OutputError) and not error.nobody_reads:
                interrupted.reason = f"{error}; "
            interrupted.set()

    return tell
