"""Bytes in words."""

from clearhead.wording import counted

UNITS = ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


def in_bytes(number: int) -> str:
    """A number of bytes with three digits and a unit, as `describe` writes them: 1 kB is 1024 bytes."""
    for unit, name in UNITS:
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return counted(number, "byte")
