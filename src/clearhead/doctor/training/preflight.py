"""The preflight: before the first step, that the training can be what it looks like.

That is the doctor's quick level, of a model whose kind is known, and what only a training knows: its batch, its
optimizer, and the loss that both begin with.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor.checks.base import finding
from clearhead.doctor.examination import check
from clearhead.doctor.probes.freshness import freshness
from clearhead.doctor.probes.loss import IGNORED
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.report.report import Report
from clearhead.doctor.spec import Spec
from clearhead.doctor.state_guard import restored, without_zeros
from clearhead.errors import DataError

Forward = Callable[[Tensor], Tensor]  # ids (B, T) -> logits (B, T, V)

FRESH_TOLERANCE = 0.05  # of ln V; fresh models of this library stay within 2 %
GIVEN_AWAY = 0.5  # of the masked targets; a tenth stands in the inputs as it is, by design
BUDGET = 5e9  # floating-point operations of one forward and backward: what is done with the batch takes half a second
EXAMINED = (
    "finite",
    "storage",
    "deterministic",
    "memory",
    "rows",
    "layouts",
    "norms",
    "dependencies",
    "sources",
    "paths",
)
EXAMINED_BY_GRADIENT = "gradients"
OF_A_TRAINING = {"D15", "D16", "O01", "O02", "O04", "O11"}  # what no model shows by itself
STOPPING = {"A13"}  # a warning elsewhere; what this library trains has no parameter without an effect


@dataclass(frozen=True)
class PreflightReport:
    """The faults found, and for each question that was asked and found none, what it showed."""

    findings: tuple[Finding, ...]
    shown: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether there is no fault."""
        return not self.findings

    def line(self) -> str:
        """The examination in one line."""
        if self.passed:
            return "preflight passed: " + ", ".join(self.shown)
        return f"preflight failed: {self.findings[0].sentence}" + (
            f" (and {', '.join(f.id for f in self.findings[1:])})" if len(self.findings) > 1 else ""
        )


def preflight(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    optimizer_parameters: Iterable[Tensor],
    *,
    spec: Spec,
    forward: Forward | None = None,
) -> PreflightReport:
    """Examine a model and its batch; afterwards the model is bit for bit what it was.

    1. The doctor's quick level: no future leak, rows that keep apart, gradient for every parameter, and the rest.
    2. The same of this very batch: other tokens later in a row move no logit. (Not if bidirectional.)
    3. A fresh model's loss on this batch is near ln V.
    4. Every parameter is in the optimizer once.
    5. The targets are the inputs shifted by one. If bidirectional: most are not what stands in their place already.

    Args:
        inputs, targets: (B, T), as training uses them; targets of -100 are not counted.
        optimizer_parameters: everything that the optimizer moves.
        spec: what the model is meant to be, its kind in any case, and whether it is fresh.
        forward: ids (B, T) -> logits (B, T, V), as training calls the model; the model itself by default. A
            translator's holds a source.
    """
    parameters = list(model.parameters())
    device = parameters[0].device if parameters else inputs.device
    inputs, targets = inputs.to(device), targets.to(device)
    tokens = int(min(4096, max(64, BUDGET / (6 * max(1, sum(p.numel() for p in parameters))))))
    bidirectional = spec.kind == "bidirectional"
    is_fresh = freshness(model, spec.fresh)[0]
    parts = [_examined(model, spec)]
    with restored(model, device), torch.no_grad():
        model.eval()
        parts += [
            _check_batch(model, forward or model, inputs, tokens) if not bidirectional else NOTHING,
            _check_fresh(forward or model, inputs, targets, tokens) if is_fresh else NOTHING,
        ]
    parts += [
        _check_optimizer(model, list(optimizer_parameters)),
        _check_masked_targets(inputs, targets) if bidirectional else _check_targets(inputs, targets),
    ]
    return PreflightReport(
        tuple(fault for part in parts for fault in part.findings), tuple(s for part in parts for s in part.shown)
    )


NOTHING = PreflightReport((), ())


def _examined(model: nn.Module, spec: Spec) -> PreflightReport:
    try:
        report = check(model, replace(spec, time_first=False), only=[*EXAMINED, EXAMINED_BY_GRADIENT])
    except DataError:
        return PreflightReport((), ("no call of it without this batch was found",))
    stopping = tuple(fault for fault in report.findings if fault.status == "fail" or fault.id in STOPPING)
    return PreflightReport(stopping, tuple(_shown(report)))


def _shown(report: Report) -> Iterator[str]:
    """What the checks that were made and found no fault have proved."""
    passed = {check.name for check in report.checks if check.status in ("pass", "warn")}
    if {"dependencies", "paths"} <= passed:
        yield "no future leak"
    if "dependencies" in passed and report.kind == "bidirectional":
        yield "every token is seen from both sides"
    if "rows" in passed:
        yield "rows keep apart"
    if EXAMINED_BY_GRADIENT in passed:
        yield "every parameter receives gradient"


def _check_batch(model: nn.Module, forward: Forward, inputs: Tensor, tokens: int) -> PreflightReport:
    """Copies of the batch's rows, each with its own last position: other tokens behind it move no logit up to it."""
    rows, T = _affordable(inputs, tokens)
    known = torch.unique(inputs)
    if T < 2 or len(known) < 2:
        return NOTHING
    rows = min(T - 1, max(4, rows))
    ids = inputs[torch.arange(rows, device=inputs.device) % len(inputs), :T]  # (R, T)
    last = torch.linspace(0, T - 2, rows).round().long().to(inputs.device)  # (R,), spread over the whole row
    is_future = torch.arange(T, device=inputs.device) > last[:, None]  # (R, T)
    generator = torch.Generator().manual_seed(0)
    shift = torch.randint(1, len(known), ids.shape, generator=generator).to(ids)
    other = torch.where(is_future, known[(torch.searchsorted(known, ids) + shift) % len(known)], ids)
    with without_zeros(model.parameters(), generator), torch.no_grad():
        moved = (forward(ids) != forward(other)).any(-1) & ~is_future  # (R, T)
    if not moved.any():
        return NOTHING
    row, position = moved.nonzero()[0].tolist()
    witness = f"in this batch, other tokens behind {int(last[row])} move the logits at {position}"
    return PreflightReport((finding((("M01", 0.5), ("M18", 0.3), ("M16", 0.2)), witness),), ())


def _affordable(inputs: Tensor, tokens: int) -> tuple[int, int]:
    """How many rows and columns of `inputs` (B, T) make about `tokens` tokens, at least four rows of eight."""
    columns = min(inputs.shape[1], max(8, tokens // 4))
    return max(1, tokens // columns), columns


def _check_fresh(forward: Forward, inputs: Tensor, targets: Tensor, tokens: int) -> PreflightReport:
    """The loss of some rows of the batch is that of even odds."""
    rows, columns = _affordable(inputs, tokens)
    inputs, targets = inputs[:, :columns], targets[:, :columns]
    counted = (targets != IGNORED).any(-1)
    if not counted.any():
        return PreflightReport((), ("no target is counted where the loss was looked at",))
    inputs, targets = inputs[counted][:rows], targets[counted][:rows]
    logits = forward(inputs).float()  # (B, T, V)
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none")
    losses = losses[targets.flatten() != IGNORED]  # (N,)
    V = logits.shape[-1]
    even, loss = math.log(V), losses.mean().item()
    chance = 4 * losses.std().item() / math.sqrt(len(losses)) if len(losses) > 1 else even  # four standard errors
    if abs(loss - even) <= FRESH_TOLERANCE * even + chance:
        return PreflightReport((), (f"fresh loss {loss:.3f} near ln {V} = {even:.3f}",))
    if not math.isfinite(loss):
        return PreflightReport((finding((("M14", 0.6), ("R01", 0.4)), f"the loss of this batch is {loss}"),), ())
    witness = f"its loss on this batch is {loss:.3f}, even odds for {V} tokens give ln {V} = {even:.3f}"
    return PreflightReport((finding("E04", witness, value=loss - even, threshold=FRESH_TOLERANCE * even),), ())


def _check_optimizer(model: nn.Module, moved: list[Tensor]) -> PreflightReport:
    times = Counter(id(tensor) for tensor in moved)
    names = {id(p): name for name, p in model.named_parameters()}
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    missing = [name for name, p in model.named_parameters() if p.requires_grad and not times[id(p)]]
    twice = [names[key] for key, count in times.items() if count > 1 and key in names]
    strangers = sum(1 for key in times if key not in names)
    findings = []
    if frozen:
        findings.append(finding("O11", f"{_list(frozen)}: requires_grad is False"))
    if missing:
        findings.append(finding("O01", f"{_list(missing)}: in no group of the optimizer"))
    if twice:
        findings.append(finding("O04", f"{_list(twice)}: more than once in the optimizer"))
    if strangers:
        findings.append(finding("O02", f"{strangers} tensors in the optimizer are not the model's"))
    return PreflightReport(tuple(findings), () if findings else (f"all {len(names)} in the optimizer",))


def _check_targets(inputs: Tensor, targets: Tensor) -> PreflightReport:
    counted = targets != IGNORED
    if not counted.any():
        return PreflightReport((finding("D15", "every target of this batch is -100"),), ())
    if inputs.shape[1] < 2 or not counted[:, :-1].any():
        return PreflightReport((), ("rows too short to compare targets with inputs",))
    expected, actual = inputs[:, 1:], targets[:, :-1]
    wrong = (counted[:, :-1] & (expected != actual)).nonzero().tolist()
    if not wrong:
        return PreflightReport((), ("targets are the next tokens",))
    row, position = wrong[0]
    witness = (
        f"{len(wrong)} of {int(counted[:, :-1].sum())} targets are not the next input, the first in row {row}, "
        f"position {position}: {int(actual[row, position])} instead of {int(expected[row, position])}"
    )
    shift = next((shift for shift in (0, 2, -1, 3) if _is_shifted_by(inputs, targets, shift)), None)
    if shift is None:
        return PreflightReport((finding((("D02", 0.5), ("D03", 0.5)), witness, value=len(wrong)),), ())
    meaning = {0: "they are the inputs themselves", -1: "they are the tokens before"}
    witness += f" ({meaning.get(shift, f'they are the inputs shifted by {shift}')})"
    return PreflightReport((finding("D02" if shift else "D01", witness, value=shift, threshold=1),), ())


def _check_masked_targets(inputs: Tensor, targets: Tensor) -> PreflightReport:
    counted = targets != IGNORED
    if not counted.any():
        return PreflightReport((finding("D15", "every target of this batch is -100"),), ())
    given_away = float((inputs == targets)[counted].float().mean())
    if given_away <= GIVEN_AWAY:
        return PreflightReport((), (f"{counted.float().mean():.0%} of the tokens are masked targets",))
    witness = f"{given_away:.0%} of the targets stand in the inputs as they are"
    return PreflightReport((finding("D16", witness, value=given_away, threshold=GIVEN_AWAY),), ())


def _is_shifted_by(inputs: Tensor, targets: Tensor, shift: int) -> bool:
    T = inputs.shape[1]
    if abs(shift) >= T:
        return False
    ahead = inputs[:, max(0, shift) : T + min(0, shift)]
    actual = targets[:, max(0, -shift) : T - max(0, shift)]
    counted = actual != IGNORED
    return bool(counted.any()) and torch.equal(ahead[counted], actual[counted])


def _list(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
