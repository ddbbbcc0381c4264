"""Fixed tables of positions: sines and cosines whose wavelengths form one geometric series."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.names import POSITION_TABLE
from clearhead.doctor.checks.base import Finding, Subject, attempt, finding
from clearhead.doctor.probes.flow import ADD, read_by
from clearhead.doctor.probes.locations import owner_of
from clearhead.doctor.probes.products import LINEAR
from clearhead.doctor.report.findings import Where

STILL = 1e-6  # how far a column of a table moves at least over all positions; the slowest usual wave moves 1e-5
SHARE = 0.25  # of the columns of a table, from which on they are reported
MOST = 0.5  # of the columns, from which on they tell no positions apart for certain
TURNS = re.compile(r"cos|sin(?!u)|rot|rope|freq", re.I)  # tables that rotate hold their columns twice
SAYS_BASE = re.compile(r"\b(10000(\.0?)?|1e\+?0?4|10_000(\.0)?)\b")
BASE = 10_000.0  # of the wavelengths, where nobody says otherwise
SAME = 0.02  # of the whole range of logarithms: two wavelengths that are one
OTHER = 0.15  # of the same: two ranges that are not one
SERIES = "the waves that it is made of"
APART = "that a table of positions tells them apart"
SAYS = "10000, which its code says"
NARROW, SHORT = 8, 6  # columns and positions; fewer show no series


def waves(subject: Subject) -> list[Finding]:
    """A fixed table of positions tells them apart: its columns move, differ, and turn as fast as they should."""
    for of, odd, where in _judged(subject, subject.hints.code):
        if odd:
            what, value = f"{of}{odd.what}", odd.value
            return [finding("P09", what, value=value, threshold=SAME, where=where, against=SERIES, second=odd.second)]
    return []


class Oddity(NamedTuple):
    """What is wrong with waves, by how much of their number or range, and a second thing that is wrong with them."""

    what: str
    value: float
    second: str


def _judged(subject: Subject, code: str) -> Iterator[tuple[str, Oddity | None, Where]]:
    for name, flat, where in _tables(subject):
        still = _still(subject, name, flat)
        may_turn = TURNS.search(name) or (still and still.second)
        yield f"{name}: ", (None if may_turn else _series(flat, code)) or still, where
    for flat, where in _read(subject):
        yield "of what is read beside the tokens, ", _series(flat, code), where


def _tables(subject: Subject) -> Iterator[tuple[str, Tensor, Where]]:
    """Buffers, frozen parameters and attributes that are named after positions, as (positions, width)."""
    model = subject.fresh
    frozen = ((name, parameter) for name, parameter in model.named_parameters() if not parameter.requires_grad)
    plain = (
        (f"{path}.{name}".lstrip("."), value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    )
    for name, tensor in (*model.named_buffers(), *frozen, *plain):
        flat = tensor.detach().squeeze()
        if POSITION_TABLE.search(name) and flat.dim() == 2 and _holds_waves(flat):
            yield name, flat.cpu(), owner_of(subject.model, name)


def _holds_waves(flat: Tensor) -> bool:
    """Whether numbers (positions, width) may be sines and cosines."""
    if not flat.is_floating_point() or len(flat) < SHORT or flat.shape[1] < NARROW or not flat.isfinite().all():
        return False
    return float(flat.abs().max()) < 1.001


def _read(subject: Subject) -> Iterator[tuple[Tensor, Where]]:
    """Numbers (positions, width) that an addition or a map reads, the same for all rows, whichever axis is theirs."""
    looked_at: set[int] = set()
    for call in (call for call in subject.inside_fresh.calls if call.name in ADD | LINEAR):
        for part in (t for t in read_by(call) if id(t) not in looked_at and not isinstance(t, nn.Parameter)):
            looked_at.add(id(part))
            with attempt() as attempted:
                flat = part.detach().cpu().squeeze()
            if attempted.failed:  # what a vectorized map made cannot be read after it
                continue
            for axis in range(2) if flat.dim() == 3 else ():
                if torch.equal(flat, flat.narrow(axis, 0, 1).expand_as(flat)):
                    flat = flat.select(axis, 0)
                    break
            if flat.dim() == 2 and _holds_waves(flat):
                yield flat, subject.place_of(call)


def _still(subject: Subject, name: str, flat: Tensor) -> Oddity | None:
    """Columns that are the same at all positions, here and in the tables beside it."""
    owner = subject.fresh.get_submodule(name.rpartition(".")[0]) if "." in name else subject.fresh
    others = [o.squeeze().cpu() for o in owner.buffers(recurse=False) if o.squeeze().shape == flat.shape]
    still = float(torch.stack([_stands_still(table) for table in (flat, *others)]).all(0).float().mean())
    if SHARE <= still < 1:
        what = f"{still:.0%} of its columns hold one number at all {len(flat)} positions"
        return Oddity(what, still, APART if still > MOST else "")
    return None


def _twice_cosine(columns: Tensor) -> Tensor:
    """For each column (positions, n), what times its numbers comes nearest to the sums of their neighbors."""
    inner, neighbors = columns[1:-1], columns[2:] + columns[:-2]
    return (inner * neighbors).sum(0) / inner.square().sum(0).clamp_min(1e-12)


def _stands_still(table: Tensor) -> Tensor:
    """For each column, whether it holds one number. A slow cosine does where its sine, in a table beside it, moves."""
    return (table.amax(0) - table.amin(0)) < STILL


def _series(table: Tensor, code: str) -> Oddity | None:
    """What contradicts Vaswani et al.'s series in waves (positions, width).

    Where each column has a speed of its own in that very series, so that a pair is only nearly one, it is nothing.
    Column 2i is sin(t w) and column 2i + 1 is cos(t w), or all sines stand before all cosines, with w falling from 1 to
    nearly 1 / 10000 by one factor.
    """
    table = _with_origin(table.double())
    sines, cosines = (table[:, (table[0] - at).abs() < 1e-6] for at in (0.0, 1.0))  # at position 0
    of_sines = [_frequency(column, of_sine=True) for column in sines.T]
    if min(sines.shape[1], cosines.shape[1]) < NARROW // 2 or sines.shape[1] + cosines.shape[1] < table.shape[1]:
        slow = sum(0 < w < BASE ** -(1 + OTHER) for w in of_sines) / table.shape[1]
        if slow < SHARE or not SAYS_BASE.search(code) or not _is_wave(sines, of_sines):
            return None
        return Oddity(f"{slow:.0%} of its waves are longer than 10000 times the shortest", slow, SAYS)
    of_cosines = [_frequency(column, of_sine=False) for column in cosines.T]
    known = [(w, v) for w, v in zip(of_sines, of_cosines, strict=False) if w and v]
    if len(known) < NARROW // 2 or not all(map(_is_wave, (sines, cosines), (of_sines, of_cosines))):
        return None
    first, last = math.log(max(w for w, _ in known)), math.log(min(w for w, _ in known))
    if first - last < SAME:
        return Oddity(
            f"all {2 * len(known)} columns turn at one speed", first - last, "its width, for which 2 would do"
        )
    if first - last < 1:
        return None
    apart = max(abs(math.log(w / v)) for w, v in known) / (first - last)
    slopes = torch.tensor([math.log(w) for w, _ in known]).diff()
    base = math.exp(-float(slopes.mean()) * sines.shape[1])
    off = abs(math.log(base) / math.log(BASE) - 1)
    if apart > SAME:
        what = "the sine and the cosine of a pair turn at different speeds, so no distance is one rotation"
        return Oddity(what, apart, f"the base of its series, {base:.3g}" if off > OTHER else "")
    says = SAYS_BASE.search(code)
    if float((slopes - slopes.mean()).abs().max()) > SAME * (first - last):
        uneven = float((slopes - slopes.mean()).abs().max())
        return Oddity("its wavelengths form no geometric series", uneven, SAYS if says else "")
    if off > OTHER and says:
        return Oddity(f"its wavelengths form a series to the base {base:.3g}", off, SAYS)
    return None


def _with_origin(table: Tensor) -> Tensor:
    """The same; where the first row is zero, as for padding, with the row that the waves come from."""
    if table[0].any():
        return table
    k = _twice_cosine(table[1:])
    return torch.cat([(k * table[1] - table[2]).round()[None], table[1:]])


def _frequency(column: Tensor, *, of_sine: bool) -> float:
    """By how many radians a sine or cosine (positions,) that begins at phase 0 turns per position; 0 if unknown.

    It is read at the last position before its first quarter of a turn, where it is known best. A cosine of float32 that
    is nearly 1 says little.
    """
    before = column < 0.8 if of_sine else column > 0.5
    ends = (~before).nonzero()
    t = max(1, (int(ends[0]) if len(ends) else len(column)) - 1)
    value = float(column[t].clamp(-1, 1))
    return math.asin(value) / t if of_sine else math.acos(value) / t if 1 - value > STILL else 0.0


def _is_wave(columns: Tensor, frequencies: list[float]) -> bool:
    """Whether columns (positions, n) are waves of these frequencies: a table may hold something else."""
    t = torch.arange(min(len(columns), 16), dtype=torch.double)
    phases = t[:, None] * torch.tensor(frequencies, dtype=torch.double)
    at_zero = float(columns[0].mean())
    expected = phases.cos() if at_zero > 0.5 else phases.sin()
    return float((expected - columns[: len(t)]).abs().max()) < 0.05
