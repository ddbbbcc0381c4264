"""What must be set in a process before torch loads, and can only be set there; and how it loads soonest."""

import ctypes
import gc
import os
import sys

SPINS = "1000"  # a waiting thread then yields soon; with the default a busy neighbour makes a step 12 times slower
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt's names for them
KEEP = 1 << 30  # bytes


def prepare_process() -> None:
    """Short spinning for OpenMP, and an allocator that keeps freed memory instead of giving it back at every step."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it, musl has not
        if mallopt:
            mallopt(TRIM_THRESHOLD, KEEP)
            mallopt(MMAP_THRESHOLD, KEEP)


def load_torch() -> None:
    """Import torch while the garbage collector rests, and keep it from ever looking through what came.

    Those are 170,000 objects that stay until the end. Looked through again and again they make the import a quarter
    longer, and a last time they delay the end of the process by half a second.
    """
    if "torch" in sys.modules:
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
