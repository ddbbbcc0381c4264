"""The person's own batch, run as it is: its shape, its padding, its masks."""

from dataclasses import replace

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs, Run
from clearhead.doctor.checks.base import Causes, Finding, Subject, Where, finding
from clearhead.doctor.probes.dependency import FLOORS, THRESHOLD
from clearhead.doctor.probes.localization import kept_reading, locate
from clearhead.doctor.probes.tensors import first_true

ROWS, TOKENS = 5, 2048  # at most so many rows of it, and no more than so many tokens
CAUSES: Causes = (("M19", 0.4), ("M18", 0.2), ("M02", 0.2), ("M01", 0.2))  # short rows were clean


def finite_on_own_batch(subject: Subject) -> list[Finding]:
    """On the person's batch, if there is one, the logits of every real token are finite."""
    if subject.own is None:
        return []
    inputs, more = _affordable(subject)
    rows, T = inputs.ids.shape
    names = "".join(f", with its {name}" for name in more)
    subject.journal.paths.append(
        f"the batch as it is, {rows} of {len(subject.own.inputs.ids)} rows of {T} tokens{names}"
    )
    bad = ~subject.run(inputs, more).isfinite().all(-1) & _real(subject, inputs, more)
    if not bad.any():
        return []
    row, position = first_true(bad)
    witness = f"logits {position} of row {row} of the batch are not finite"
    return [finding((("M14", 0.7), ("R01", 0.3)), witness, value=float(bad.float().mean()))]


def _affordable(subject: Subject) -> tuple[Inputs, dict[str, Tensor]]:
    """The first rows of the batch, as many as are quickly run, and the tensors that go with them."""
    assert subject.own is not None
    count, T = subject.own.inputs.ids.shape
    rows = max(1, min(ROWS, count, TOKENS // T))
    tensors = subject.own.more.items()
    more = {name: part[:rows] if part.dim() > 1 and len(part) == count else part for name, part in tensors}
    return subject.own.inputs.rows(torch.arange(rows)), more


def _real(subject: Subject, inputs: Inputs, more: dict[str, Tensor]) -> Tensor:
    """(B, T), False where a token is known to be padding."""
    mask = more.get("attention_mask")
    if mask is not None and mask.shape == inputs.ids.shape:
        return mask.bool()
    drops = next((part for name, part in more.items() if "key_padding_mask" in name), None)
    if drops is not None and drops.shape == inputs.ids.shape:
        return ~drops.bool()
    pad = subject.pad_id
    return torch.ones_like(inputs.ids, dtype=torch.bool) if pad is None else inputs.ids != pad


def leaks_on_own_batch(subject: Subject) -> list[Finding]:
    """Changing the real tokens after some position of each row moves no logit up to that position."""
    if subject.own is None or subject.own.inputs.ids.shape[1] < 2:
        return []
    inputs, more = _affordable(subject)
    real, (rows, T) = _real(subject, inputs, more), inputs.ids.shape
    last = torch.linspace(0, T - 2, rows + 2)[1:-1].round().long() if rows < T else torch.zeros(rows, dtype=torch.long)
    later = torch.arange(T) > last[:, None]  # (B, T)
    first, second = subject.pool[torch.randint(len(subject.pool), (2, rows, T), generator=subject.generator(21))]
    other = torch.where(first == inputs.ids, second, first)
    changed = replace(inputs, ids=torch.where(later & real, other, inputs.ids))

    before, after, again = (subject.run(batch, more) for batch in (inputs, changed, inputs))  # (B, T, V)
    change = (after - before).nan_to_num(0, 0, 0).abs().amax(-1)  # (B, T)
    scale = float(change.max()) or 1.0
    floor = float((again - before).nan_to_num(0, 0, 0).abs().max()) / scale
    influence = (change / scale).masked_fill(later | ~real, 0)
    threshold, value = max(THRESHOLD, FLOORS * floor), float(influence.max())
    if value <= threshold:
        return []
    row, position = divmod(int(influence.argmax()), T)
    witness = (
        f"in row {row} of the batch, changing the tokens after {int(last[row])} moves logits {position} by "
        f"{value:.1e} of the largest move"
    )
    where = _where(subject, lambda batch: subject.run(batch, more), (inputs, changed), later)
    return [finding(CAUSES, witness, value=value, threshold=threshold, floor=floor, where=where)]


def _where(subject: Subject, run: Run, pair: tuple[Inputs, Inputs], later: Tensor) -> Where:
    """The first module that lets the future through; unknown if no size tells its axis of time from the others."""
    rows, T = later.shape
    sizes = {size for parameter in subject.model.parameters() for size in parameter.shape}
    if {rows, T} & sizes or rows == T:
        return Where()
    return locate(subject.model, run, *pair, kept_reading(~later), lambda moved: bool(moved.any())).where
