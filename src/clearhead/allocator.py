"""Memory of freed tensors on a CPU: kept for the next ones, or given back to the system. glibc knows both."""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt's names for them
KEPT = 1 << 30  # bytes
LARGE = 1 << 20


def keep_freed() -> None:
    """Keep freed memory instead of giving it back at every step, for which pages would have to be cleared again."""
    _set(TRIM_THRESHOLD, KEPT)
    _set(MMAP_THRESHOLD, KEPT)


def give_back_freed() -> None:
    """From now on a large tensor has memory of its own, which the system gets back with its last use.

    Otherwise glibc keeps the room of freed tensors between those that stay, too small for the next ones: where few
    activations stay, a training held twice what its tensors need.
    """
    _set(MMAP_THRESHOLD, LARGE)


def _set(name: int, size: int) -> None:
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it, musl has not
        if mallopt:
            mallopt(name, size)
