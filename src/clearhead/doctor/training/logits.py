"""What a training's own loss asks of a model's logits, read from the gradient that it sends into them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.doctor.calling.names import LABELS, parameters_of
from clearhead.doctor.calling.outputs import arrange
from clearhead.doctor.probes.loss import OFFSETS, Xray, read, shares_at_offsets, undone
from clearhead.doctor.training.events import Embedded, Forward, ForwardOutput

AT_ONCE = 2**22  # numbers of logits that are read together
ALL = 2**24  # numbers of logits of one forward that are read
MIN_SHARE = 0.9  # share of the targets at one offset, from which the axes are taken for (B, T)
PRECISE = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class LogitsXray:
    """The X-ray of one forward's logits under one backward."""

    xray: Xray  # of the first rows
    logits: Tensor  # (B, T, V), theirs
    ids: Tensor  # (B, T)
    targets: Tensor  # (B, T), -1 where there is none
    shares: dict[int, float]  # see `probes.loss.shares_at_offsets`
    total: float | None  # of all weights; None if rows were left out, or if the logits are too imprecise for weights
    count: int  # of the targets
    path: tuple[str | int, ...]  # to the logits, in what the model returned
    embedded: Embedded
    forward: Forward

    @property
    def offset(self) -> int | None:
        """Where every target is among the ids, counted from its own position; None if at no common offset."""
        return next((offset for offset in OFFSETS if self.shares.get(offset) == 1.0), None)

    @property
    def largest_share(self) -> float:
        """The share of the targets at the commonest offset."""
        return max(self.shares.values(), default=0.0)

    @property
    def is_precise(self) -> bool:
        """Whether the logits are precise enough to read weights from them."""
        return self.logits.dtype in PRECISE

    def without_logits(self) -> "LogitsXray":
        """The small part of it that later steps are compared by."""
        reading = replace(self.xray, gradient=self.xray.gradient[:0])
        return replace(self, xray=reading, logits=self.logits[:0])


def xray_of(forward: Forward, scale: float) -> LogitsXray | None:
    """The X-ray of the logits of a forward after its backward; None if it has no logits or no tokens.

    `scale`: of a gradient scaler; 1 without one.
    """

    def worth(xray: LogitsXray) -> float:
        """How likely these are the logits, over these tokens."""
        is_whole = xray.logits.shape[-1] == xray.embedded.vocab_size
        return xray.shares.get(1, 0.0) + is_whole + xray.largest_share / 2

    outputs = [output for output in forward.outputs if output.version == output.tensor._version]
    xrays = [_read(forward, output, embedded, scale) for output in outputs for embedded in _tokens(forward)]
    return max((xray for xray in xrays if xray is not None), key=worth, default=None)


def _tokens(forward: Forward) -> Iterator[Embedded]:
    """What embeddings read; without embeddings, integer arguments that are not named like targets."""
    known: list[Tensor] = []
    for embedded in forward.embedded:
        if embedded.ids.shape[1] > 1 and not any(torch.equal(embedded.ids, ids) for ids in known):
            known.append(embedded.ids)
            yield embedded
    if known:
        return
    names = [parameter.name for parameter in parameters_of(forward.module)]
    arguments = {**dict(zip(names, forward.args, strict=False)), **forward.kwargs}
    for name, value in arguments.items():
        if not isinstance(value, Tensor) or value.dtype not in (torch.long, torch.int) or value.dim() != 2:
            continue
        if not LABELS.search(name) and value.shape[1] > 1:
            yield Embedded(forward.module, value.detach(), int(value.max()) + 1, None)


def _read(forward: Forward, output: ForwardOutput, embedded: Embedded, scale: float) -> LogitsXray | None:
    """With rows as the first axis; as the second, if only then the targets are among the ids."""
    first = _oriented(forward, output, embedded, embedded.ids, scale)
    if first is not None and first.largest_share >= MIN_SHARE:
        return first
    turned = _oriented(forward, output, embedded, embedded.ids.t(), scale)
    return turned if turned is not None and turned.largest_share >= MIN_SHARE else first


def _oriented(
    forward: Forward, output: ForwardOutput, embedded: Embedded, ids: Tensor, scale: float
) -> LogitsXray | None:
    if output.gradient is None or output.gradient.is_sparse:
        return None
    logits, gradient = arrange(output.tensor, *ids.shape), arrange(output.gradient, *ids.shape)
    if logits is None or gradient is None or logits.shape[-1] < 2 or ids.shape[1] < 2:
        return None
    logits, gradient = undone(logits, gradient / scale)
    B, T, V = logits.shape
    if T * V > ALL or not bool(gradient.any()):
        return None
    ids, most = ids[: max(1, ALL // (T * V))].cpu(), max(1, AT_ONCE // (T * V))
    readings = [
        read(gradient[rows].cpu().double(), logits[rows].cpu().double(), ids[rows], 0.0)
        for rows in (slice(start, min(start + most, len(ids))) for start in range(0, len(ids), most))
    ]
    targets = torch.cat([reading.targets for reading in readings])
    is_whole = len(ids) == B and logits.dtype in PRECISE
    return LogitsXray(
        xray=readings[0],
        logits=logits[: len(readings[0].ids)].cpu(),
        ids=ids,
        targets=targets,
        shares=shares_at_offsets(targets, ids),
        total=sum(float(reading.weights.sum()) for reading in readings) if is_whole else None,
        count=int((targets >= 0).sum()),
        path=output.path,
        embedded=embedded,
        forward=forward,
    )
