"""The person's own batch, run as it is: its shape, its padding, its masks."""

from dataclasses import replace

import torch
from torch import Tensor

from clearhead.doctor.calling.batches import OwnBatch
from clearhead.doctor.calling.inputs import Inputs, Run
from clearhead.doctor.checks.base import Causes, finding
from clearhead.doctor.probes.dependency import FLOORS, THRESHOLD
from clearhead.doctor.probes.localization import Reading, locate
from clearhead.doctor.report.findings import Finding, Where
from clearhead.doctor.subject import Subject

ROWS = 5  # of it, as many as make no more than so many tokens
TOKENS = 2048
CAUSES: Causes = (("M19", 0.4), ("M18", 0.2), ("M02", 0.2), ("M01", 0.2))  # short rows were clean


def finite_on_own_batch(subject: Subject) -> list[Finding]:
    """On the batch that was given, if one was, every logit of a real token is a number."""
    if subject.own is None:
        return []
    inputs, more = _affordable(subject.own)
    rows, T = inputs.ids.shape
    with subject.quiet():
        logits = _run(subject, more)(inputs)  # (B, T, V)
    more_names = "".join(f", with its {name}" for name in more)
    share = f"{rows} of {len(subject.own.inputs.ids)} rows"
    subject.journal.paths.append(f"the batch as it is, {share} of {T} tokens{more_names}")
    bad = ~logits.isfinite().all(-1) & _real(subject, inputs, more)
    if not bad.any():
        return []
    row, position = (int(part) for part in bad.nonzero()[0])
    witness = f"logits {position} of row {row} of the batch are not finite"
    return [finding((("M14", 0.7), ("R01", 0.3)), witness, value=float(bad.float().mean()))]


def _affordable(own: OwnBatch) -> tuple[Inputs, dict[str, Tensor]]:
    """As many of its first rows as can be run, and what is given beside them."""
    count, T = own.inputs.ids.shape
    rows = max(1, min(ROWS, count, TOKENS // T))
    more = {name: part[:rows] if part.dim() > 1 and len(part) == count else part for name, part in own.more.items()}
    return own.inputs.rows(torch.arange(rows)), more


def _run(subject: Subject, more: dict[str, Tensor]) -> Run:
    return lambda inputs: subject.convention.logits(subject.model, inputs, **more)


def _real(subject: Subject, inputs: Inputs, more: dict[str, Tensor]) -> Tensor:
    """(B, T), True where no padding stands, as far as that is known."""
    mask = more.get("attention_mask")
    if mask is not None and mask.shape == inputs.ids.shape:
        return mask.bool()
    drops = next((part for name, part in more.items() if "key_padding_mask" in name), None)
    if drops is not None and drops.shape == inputs.ids.shape:
        return ~drops.bool()
    pad = subject.pad_id
    return torch.ones_like(inputs.ids, dtype=torch.bool) if pad is None else inputs.ids != pad


def leaks_on_own_batch(subject: Subject) -> list[Finding]:
    """Other tokens behind a place of each row, as much padding as before: no logit up to there may move."""
    if subject.own is None or subject.own.inputs.ids.shape[1] < 2:
        return []
    inputs, more = _affordable(subject.own)
    run, real = _run(subject, more), _real(subject, inputs, more)
    rows, T = inputs.ids.shape
    last = torch.linspace(0, T - 2, rows + 2)[1:-1].round().long() if rows < T else torch.zeros(rows, dtype=torch.long)
    later = torch.arange(T) > last[:, None]  # (B, T)
    pool = subject.pool()
    drawn = torch.randint(len(pool), (2, rows, T), generator=subject.generator(21))
    first, second = pool[drawn]
    other = torch.where(first == inputs.ids, second, first)
    changed = replace(inputs, ids=torch.where(later & real, other, inputs.ids))
    with subject.quiet():
        before, after, again = run(inputs), run(changed), run(inputs)  # (B, T, V)
    change = (after - before).nan_to_num(0, 0, 0).abs().amax(-1)  # (B, T)
    scale = float(change.max()) or 1.0
    floor = float((again - before).nan_to_num(0, 0, 0).abs().max()) / scale
    influence = (change / scale).masked_fill(later | ~real, 0)
    threshold = max(THRESHOLD, FLOORS * floor)
    value = float(influence.max())
    if value <= threshold:
        return []
    row, position = divmod(int(influence.argmax()), T)
    witness = (
        f"in row {row} of the batch, other tokens behind {int(last[row])} move logits {position} by {value:.1e} "
        "of the largest move"
    )
    where = _where(subject, run, (inputs, changed), later)
    return [finding(CAUSES, witness, value=value, threshold=threshold, floor=floor, where=where)]


def _where(subject: Subject, run: Run, pair: tuple[Inputs, Inputs], later: Tensor) -> Where:
    """The first module that lets the future through; it is not looked for where its axis of time cannot be told."""
    rows, T = later.shape
    sizes = {size for parameter in subject.model.parameters() for size in parameter.shape}
    if {rows, T} & sizes or rows == T:
        return Where()

    def forbidden(moved: Tensor) -> bool:
        return bool((moved & ~later).any())

    return locate(subject.model, run, *pair, _moves(rows, T), forbidden)[0]


def _moves(rows: int, T: int) -> Reading:
    """Which places (B, T) of a hidden tensor with one axis of each size move."""

    def read(before: Tensor, after: Tensor) -> Tensor | None:
        shape = list(before.shape)
        if before.shape != after.shape or shape.count(rows) != 1 or shape.count(T) != 1:
            return None
        change = (after - before).nan_to_num(0, 0, 0).abs().movedim((shape.index(rows), shape.index(T)), (0, 1))
        change = change.reshape(rows, T, -1).amax(-1)
        return change > THRESHOLD * float(change.max())

    return read
