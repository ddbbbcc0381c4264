"""Whether a model fits into the memory that is left, judged by the headers of its files. No torch."""

import ctypes
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from clearhead.errors import DataError
from clearhead.interop.headers import Stored


class Group(NamedTuple):
    """The files in which the system describes the memory of a container."""

    limit: str
    usage: str
    statistics: str
    cached: str  # the line of file cache that was not read lately: it counts as used, and is given back when needed


_V2, _V1 = "/sys/fs/cgroup/memory.", "/sys/fs/cgroup/memory/memory."
GROUPS = (
    Group(f"{_V2}max", f"{_V2}current", f"{_V2}stat", "inactive_file"),
    Group(f"{_V1}limit_in_bytes", f"{_V1}usage_in_bytes", f"{_V1}stat", "total_inactive_file"),
)


def refuse_larger_than_memory(path: Path, stored: Iterable[Stored]) -> None:
    """A model and one of its tensors, as it is in the file, must fit.

    Raises:
        DataError: they do not; tells both sizes.
    """
    tensors = list(stored)
    width = 8 if any(tensor.type == "F64" for tensor in tensors) else 4
    needed = width * sum(tensor.numbers for tensor in tensors) + max((tensor.bytes for tensor in tensors), default=0)
    free = free_memory()
    if free is not None and needed > free:
        raise DataError(
            f"{path} holds a model that takes {needed / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free; "
            "close other programs, or take a smaller model"
        )


def free_memory() -> int | None:
    """The bytes that this process may still take, where the system tells."""
    limits = [_free_of_system(), *map(_free_of_group, GROUPS), _free_of_process()]
    return min((limit for limit in limits if limit is not None), default=None)


def _free_of_system() -> int | None:
    with suppress(OSError, ValueError, StopIteration), open("/proc/meminfo", encoding="ascii") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    with suppress(AttributeError, OSError, ValueError):  # macOS: all that there is
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sys.platform == "win32":
        return _free_of_windows()
    return None


def _free_of_group(group: Group) -> int | None:
    """What the container that the process runs in may still take; None where it has no limit."""
    limit = _number_in(group.limit)
    if limit is None:
        return None
    used = (_number_in(group.usage) or 0) - (_number_in(group.statistics, group.cached) or 0)
    return max(0, limit - max(0, used))


def _number_in(path: str, name: str = "") -> int | None:
    """The number that a file of the system holds, in the line of that name where it has several; "max" is none."""
    with suppress(OSError, ValueError, StopIteration), open(path, encoding="ascii") as lines:
        return int(next(line for line in lines if line.startswith(f"{name} " if name else "")).split()[-1])
    return None


def _free_of_process() -> int | None:
    """Where somebody gave it a limit of its own."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return max(0, limit - pages * resource.getpagesize())
    return None


def _free_of_windows() -> int | None:
    class Status(ctypes.Structure):
        _fields_ = [("length", ctypes.c_uint32), ("load", ctypes.c_uint32)] + [
            (name, ctypes.c_uint64)
            for name in ("physical", "free", "pages", "free_pages", "virtual", "free_virtual", "extended")
        ]

    status = Status()
    status.length = ctypes.sizeof(Status)
    windows = getattr(ctypes, "windll", None)
    succeeded = windows is not None and windows.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status.free) if succeeded else None
