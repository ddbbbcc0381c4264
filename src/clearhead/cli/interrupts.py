"""Ctrl-C and SIGTERM from the first moment of the process to its last: exit code 130, one sentence, no traceback.

A KeyboardInterrupt at an arbitrary point is unsafe in three places. While a module is
imported, libraries written in C swallow it or print a traceback of their own. In a destructor or a callback Python
prints it and goes on. While the end of the command is told, nobody expects it. So: while there is nothing to lose the
process ends at once; later an import is waited for; what a destructor swallowed is raised again; at the end signals
are ignored. A training hears them in its own way, between two steps.
"""

import _thread
import os
import signal
import sys
import time

TYPE_CHECKING = False  # what loads before `listen` is called can still be torn
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

SENTENCE = "interrupted"
CODE = 130
SOON = 0.05  # seconds

_listening = False
_main_thread = 0
_heard = 0  # the last signal's number
_nothing_to_lose = True


def listen() -> None:
    """Hear the signals in this process; what nohup or a background shell ignores stays ignored."""
    global _listening, _main_thread
    _listening, _main_thread = True, _thread.get_ident()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _hear)
    sys.unraisablehook = _unraisable


def were_heard() -> bool:
    """Whether one has come: what goes wrong from then on is its consequence."""
    return bool(_heard)


def forget() -> None:
    """What came was for something that goes on without it, such as an answer of a chat."""
    global _heard
    _heard = 0


class NothingToLose:
    """While it lasts, a signal ends the process at once: nothing has been begun that is to be finished or removed."""

    def __enter__(self) -> None:
        global _nothing_to_lose
        self.before, _nothing_to_lose = _nothing_to_lose, True

    def __exit__(self, *_: object) -> None:
        global _nothing_to_lose
        _nothing_to_lose = self.before


def something_to_lose() -> None:
    """From now on a signal is an exception, so that what was begun is finished or removed."""
    global _nothing_to_lose
    _nothing_to_lose = False


def ignore() -> None:
    """The end is being told; no signal is to cut it off."""
    if _listening:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def leave_at_once() -> "NoReturn":
    """Say the sentence and end the process, without a step of Python's own way out.

    Of several processes that torchrun started, rank 0 says it.
    """
    ignore()
    if os.environ.get("RANK", "0") != "0":
        os._exit(CODE)
    if "--json" in sys.argv:
        _tell(1, f'{{"error": "{SENTENCE}", "exit_code": {CODE}}}\n')
    else:
        _tell(2, f"clearhead: {SENTENCE}\n")
    os._exit(CODE)


def _hear(number: int, frame: "FrameType | None") -> None:
    global _heard
    if _nothing_to_lose:
        leave_at_once()
    _heard = number
    if _is_importing(frame):
        _hear_again_soon(number)
        return
    raise KeyboardInterrupt


def _is_importing(frame: "FrameType | None") -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _hear_again_soon(number: int) -> None:
    def later() -> None:
        time.sleep(SOON)
        if sys.platform == "win32":
            _thread.interrupt_main()
        else:  # a real one, which also ends a wait
            signal.pthread_kill(_main_thread, number)

    _thread.start_new_thread(later, ())


def _unraisable(args: "sys.UnraisableHookArgs") -> None:
    if issubclass(args.exc_type, KeyboardInterrupt):
        _hear_again_soon(_heard or signal.SIGINT)
    else:
        sys.__unraisablehook__(args)


def _tell(handle: int, text: str) -> None:
    try:
        os.write(handle, text.encode())
    except OSError:
        return  # nobody is there
