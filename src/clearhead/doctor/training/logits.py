"""What a training's own loss asked of a model's logits, read from the gradient that it sent into them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.doctor.calling.names import LABELS, parameters_of
from clearhead.doctor.calling.outputs import arrange
from clearhead.doctor.probes.loss import Xray, read, undone
from clearhead.doctor.training.events import Embedded, Forward, ForwardOutput

AT_ONCE = 2**22  # numbers of logits that are read together
ALL = 2**24  # numbers of logits of one forward that are read
OFFSETS = (1, 0, 2, -1, 3, -2)  # of a target from its position, the likeliest first
FOUND = 0.9  # share of targets at one offset, above which that is where they are
PRECISE = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class LogitsXray:
    """The X-ray of one forward's logits under one backward.

    `xray`: of the first rows, with what stood in `logits`. `total`: the sum of all weights; None if some rows were
    left out, or if the logits are too coarse for weights.
    """

    xray: Xray
    logits: Tensor  # (B, T, V)
    ids: Tensor  # (B, T)
    targets: Tensor  # (B, T), -1 where nothing is asked
    shares: dict[int, float]  # offset -> share of the targets that are the ids so much further
    total: float | None
    count: int  # of the targets
    path: tuple[str | int, ...]  # to the logits, in what the model returned
    embedded: Embedded
    forward: Forward

    @property
    def offset(self) -> int | None:
        """Where every target stands among the ids, counted from its own place; None if nowhere."""
        return next((offset for offset in OFFSETS if self.shares.get(offset) == 1.0), None)

    @property
    def is_precise(self) -> bool:
        """Whether the logits have enough digits for weights to be read."""
        return self.logits.dtype in PRECISE

    def without_logits(self) -> "LogitsXray":
        """What little of it later steps are compared by."""
        reading = replace(self.xray, gradient=self.xray.gradient[:0])
        return replace(self, xray=reading, logits=self.logits[:0])


def xray_of(forward: Forward, scale: float) -> LogitsXray | None:
    """The X-ray of the logits of a forward after its backward; None where there are none, or no tokens."""
    best: tuple[float, LogitsXray] | None = None
    for output in forward.outputs:
        if output.gradient is None or output.version != output.tensor._version or output.gradient.is_sparse:
            continue
        for embedded in _tokens(forward):
            question = _read(forward, output, embedded, scale)
            if question is None:
                continue
            wide = question.logits.shape[-1] == embedded.vocab_size
            worth = question.shares.get(1, 0.0) + wide + max(question.shares.values(), default=0.0) / 2
            if best is None or worth > best[0]:
                best = worth, question
    return best[1] if best else None


def _tokens(forward: Forward) -> Iterator[Embedded]:
    """What embeddings read; where there is none, what the model was given that is no target by its name."""
    visited: list[Tensor] = []
    for embedded in forward.embedded:
        if embedded.ids.shape[1] > 1 and not any(torch.equal(embedded.ids, ids) for ids in visited):
            visited.append(embedded.ids)
            yield embedded
    if visited:
        return
    names = [parameter.name for parameter in parameters_of(forward.module)]
    arguments = {**dict(zip(names, forward.args, strict=False)), **forward.kwargs}
    for name, value in arguments.items():
        if not isinstance(value, Tensor) or value.dtype not in (torch.long, torch.int) or value.dim() != 2:
            continue
        if not LABELS.search(name) and value.shape[1] > 1:
            yield Embedded(forward.module, value.detach(), int(value.max()) + 1, None)


def _read(forward: Forward, output: ForwardOutput, embedded: Embedded, scale: float) -> LogitsXray | None:
    """With rows as the first axis, or as the second where only so the targets are found among the ids."""
    first = _oriented(forward, output, embedded, embedded.ids, scale)
    if first is not None and max(first.shares.values(), default=0.0) >= FOUND:
        return first
    turned = _oriented(forward, output, embedded, embedded.ids.t(), scale)
    return turned if turned is not None and max(turned.shares.values(), default=0.0) >= FOUND else first


def _oriented(
    forward: Forward, output: ForwardOutput, embedded: Embedded, ids: Tensor, scale: float
) -> LogitsXray | None:
    assert output.gradient is not None
    logits, gradient = arrange(output.tensor, *ids.shape), arrange(output.gradient, *ids.shape)
    if logits is None or gradient is None or logits.shape[-1] < 2 or ids.shape[1] < 2:
        return None
    logits, gradient = undone(logits, gradient / scale)
    read_out = _xray(logits, gradient, ids.cpu())
    if read_out is None:
        return None
    visited, targets, total = read_out
    ids = ids[: len(targets)].cpu()
    return LogitsXray(
        xray=visited,
        logits=logits[: len(visited.ids)].cpu(),
        ids=ids,
        targets=targets,
        shares=_shares(targets, ids),
        total=total,
        count=int((targets >= 0).sum()),
        path=output.path,
        embedded=embedded,
        forward=forward,
    )


def _xray(logits: Tensor, gradient: Tensor, ids: Tensor) -> tuple[Xray, Tensor, float | None] | None:
    """Of the first rows, all that the X-ray tells; of all of them, targets (B, T) and the sum of weights."""
    B, T, V = logits.shape
    if T * V > ALL or not bool(gradient.any()):
        return None
    rows = max(1, AT_ONCE // (T * V))
    most = max(1, ALL // (T * V))
    first: Xray | None = None
    targets, total = [], 0.0
    for start in range(0, min(B, most), rows):
        some = slice(start, min(start + rows, most))
        reading = read(gradient[some].cpu().double(), logits[some].cpu().double(), ids[some], 0.0)
        first = reading if first is None else first
        targets.append(reading.targets)
        total += float(reading.weights.sum())
    assert first is not None
    whole = most >= B and logits.dtype in PRECISE
    return first, torch.cat(targets), total if whole else None


def _shares(targets: Tensor, ids: Tensor) -> dict[int, float]:
    """For each offset, which share of the targets are the ids so much further on, as far as the row has any."""
    T = ids.shape[1]
    shares = {}
    for offset in OFFSETS:
        if abs(offset) >= T:
            continue
        there_targets = targets[:, max(0, -offset) : T - max(0, offset)]
        there = ids[:, max(0, offset) : T - max(0, -offset)]
        known = there_targets >= 0
        if int(known.sum()) >= 2:
            shares[offset] = float((there_targets == there)[known].double().mean())
    return shares
