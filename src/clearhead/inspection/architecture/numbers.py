"""Numbers as a person reads them."""

from collections.abc import Mapping, Sequence

from clearhead.wording import BYTES

STEPS = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def compact(number: int) -> str:
    """813 k, 1.05 M; exact below ten thousand."""
    if number < 10_000:
        return f"{number:,}"
    return _short(number, STEPS)


def size(n_bytes: int) -> str:
    """64 kB, 1.5 MB."""
    return f"{n_bytes} bytes" if n_bytes < 1 << 10 else _short(n_bytes, BYTES)


def described(sizes: Mapping[str, int], axes: tuple[str, ...]) -> str:
    """(B, T, D) = (1, 128, 512)."""
    numbers = ", ".join(f"{sizes[axis]:,}" for axis in axes)
    return f"({', '.join(axes)}) = ({numbers})"


def _short(number: int, steps: Sequence[tuple[int, str]]) -> str:
    step, name = next((step, name) for step, name in steps if number >= step)
    value = number / step
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    shown = f"{value:,.{digits}f}"
    return f"{shown.rstrip('0').rstrip('.') if '.' in shown else shown} {name}"
