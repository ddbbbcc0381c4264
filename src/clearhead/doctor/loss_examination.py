"""The X-ray of a loss function, and the faults that it shows."""

import inspect
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.doctor.calling.names import arguments_of
from clearhead.doctor.checks.loss.judge import judge
from clearhead.doctor.probes.loss import IGNORED, Xray, ahead, xray
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding, text_of
from clearhead.doctor.report.records import Json
from clearhead.errors import DataError
from clearhead.wording import with_article

B, T, V = 5, 9, 37
IDS = re.compile(r"^(ids?|idx|input_ids|tokens?|inputs?|seq|batch)$")
TARGETS = re.compile(r"target|label|tgt|trg|gold|^y", re.I)
PADS = re.compile(r"^(pad|pad_id|pad_idx|pad_token|pad_token_id|padding_idx|ignore_index)$", re.I)
NAMED = re.compile(r"\b\w*?(?:pad_id|pad_idx|pad_token_id|padding_idx)\s*=\s*(\d+)\b", re.I)
ENDS = re.compile(r"^(eos|eos_id|eos_idx|eos_token|eos_token_id|end_id|end_token_id)$", re.I)

Loss = Callable[..., object]


@dataclass(frozen=True)
class LossReport:
    """The X-ray of a batch without padding, and the findings on it and on one with padding."""

    target: str
    xray: Xray
    findings: tuple[Finding, ...]
    padding: str  # how the padding was marked

    def as_json(self) -> Json:
        """Plain data; `lines` are for a person."""
        verdict = "faulty" if any(finding.status == "fail" for finding in self.findings) else "healthy"
        lines = [f"{self.target} is {verdict}", self.xray.sentence, f"padding: {self.padding}"]
        lines += ["", *text_of(self.findings).splitlines()] if self.findings else []
        return {
            "target": self.target,
            "verdict": verdict,
            "offset": self.xray.offset,
            "weights": self.xray.weights.tolist(),
            "targets": self.xray.targets.tolist(),
            "smoothing": self.xray.smoothing.tolist(),
            "residual": self.xray.residual,
            "findings": [finding.as_json() for finding in self.findings],
            "lines": [*lines, "", *self.xray.table().splitlines()],
        }


def examine_loss(loss: Loss, name: str, pad_id: int | None = None) -> LossReport:
    """X-ray a function of (logits (B, T, V), ids or targets (B, T)).

    Args:
        pad_id: the token that stands for padding; by default what the function or its module calls so.

    Raises:
        DataError: it cannot be called so.
    """
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(B, T, V, generator=generator)
    order = torch.cat([torch.randperm(V, generator=generator), torch.randperm(V, generator=generator)])[: B * T]
    ids = order.view(B, T)
    shifts = _shifts(loss)
    with attempt() as attempted:
        reading = xray(lambda x, y: _number(loss(x, y)), logits, ids)
    if attempted.failed:
        raise DataError(
            f"{name} could not be called as loss(logits, ids) with logits {(B, T, V)} and ids {(B, T)} "
            f"({attempted.sentence()}); wrap it in a function that can"
        )
    pad = _pad_of(loss) if pad_id is None else pad_id
    ends = pad is not None and _number_called(loss, ENDS) == pad
    mark = IGNORED if pad is None else pad
    short = ids.where(ids != mark, torch.tensor((mark + 1) % V))
    short[1, T // 2 :], short[2, -2:] = mark, mark
    with attempt() as attempted:
        padded = xray(lambda x, y: _number(loss(x, y)), logits, short)
    padding, of_short = "no mark for it was found", []
    if not attempted.failed:
        padding, of_short = f"marked by {mark}", judge(padded, logits, pad_id=mark, shifts=shifts, ends=ends)
    pad = _spared(loss, reading, ids) if pad is None else pad
    whole = judge(reading, logits, pad_id=pad, shifts=shifts, ends=ends)
    known = {finding.id for finding in whole}
    return LossReport(name, reading, (*whole, *(fault for fault in of_short if fault.id not in known)), padding)


def _spared(loss: Loss, reading: Xray, ids: Tensor) -> int | None:
    """The only token that is never scored, if the module of the loss mentions padding."""
    try:
        source = inspect.getsource(inspect.getmodule(loss) or loss)
    except (OSError, TypeError):
        return None
    targets = ahead(ids, reading.offset or 0)
    spared = {*targets[~reading.scored].tolist()} - {*targets[reading.scored].tolist(), -1}
    return spared.pop() if len(spared) == 1 and re.search(r"(\b|_)pad", source, re.I) else None


def _pad_of(loss: Loss) -> int | None:
    """The number that stands for padding, by its name: a default, a constant beside it, or what its code passes on."""
    with suppress(OSError, TypeError):
        if named := NAMED.search(inspect.getsource(loss)):
            return int(named[1])
    return _number_called(loss, PADS)


def _number(value: object) -> Tensor:
    value = value[0] if isinstance(value, tuple) else value
    assert isinstance(value, Tensor), f"it returned {with_article(type(value).__name__)}"
    return value


def _shifts(loss: Loss) -> bool | None:
    """Whether it must shift by itself: yes if its parameter is called ids, no if targets; labels may be either."""
    names = [parameter.name for parameter in arguments_of(loss)]
    if len(names) < 2:
        return None
    if IDS.search(names[1]):
        return True
    return False if TARGETS.search(names[1]) and "label" not in names[1] else None


def _number_called(loss: Loss, names: re.Pattern[str]) -> int | None:
    """A default of the function, or a constant of its module, with such a name."""
    defaults = {parameter.name: parameter.default for parameter in arguments_of(loss)}
    module = sys.modules.get(getattr(loss, "__module__", ""))
    for name, value in (*defaults.items(), *(vars(module).items() if module else ())):
        if names.search(name) and isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
