"""The process of a command: what must be set before torch loads, how it loads soonest, and how it ends."""

import atexit
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import NoReturn

from clearhead.allocator import keep_freed
from clearhead.cli import interrupts


def prepare_process() -> None:
    """Threads for the tokenizers, and an allocator that keeps freed memory instead of giving it back at every step."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    keep_freed()


def keep_standard_handles() -> None:
    """If stdin, stdout or stderr is closed, the next file opened would reuse its descriptor.

    That may be a checkpoint, and what a library written in C prints would go into it.
    """
    for handle in (0, 1, 2):
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free, which is this one


def is_first_process() -> bool:
    """Whether this is rank 0 of those that torchrun started, or alone."""
    return int(os.environ.get("RANK", "0")) == 0


def leave_output_to_the_first() -> None:
    """Of several processes that torchrun started with the same command, only rank 0 prints its result."""
    if not is_first_process():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """While modules load, nothing becomes garbage that is worth looking for among all that stays."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def load_workflow(name: str) -> None:
    """Import one of `clearhead.workflows` and torch with it, and keep the garbage collector from looking through them.

    Those are 300,000 objects that stay until the end. Looked through again and again they make the import a quarter
    longer, and a last time they delay the end of the process by half a second.
    """
    if "torch" not in sys.modules:
        with interrupts.NothingToLose(), collector_at_rest():
            getattr(import_module("clearhead.workflows"), name)
            gc.freeze()


def leave(code: int) -> NoReturn:
    """End the process with this code, as `sys.exit` does, skipping interpreter teardown, which takes 0.1 s.

    What is to happen at the end happens before: what was registered for it runs, and what was printed is sent. No
    destructor runs, so files must be closed before: what one still buffers is lost.
    """
    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):  # whoever read it is gone; the ordinary end below tells it as ever
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            os._exit(code)
    sys.exit(code)  # which waits for the threads
