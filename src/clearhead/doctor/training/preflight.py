"""The preflight: before the first step, a check that the training is what it seems.

It makes the structural checks of the doctor's quick level, for a model whose kind is known, and adds what only a
training knows: its batch, its optimizer, and its loss before the first step.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor.checks.base import SOUND, finding
from clearhead.doctor.examination import check
from clearhead.doctor.probes.freshness import freshness
from clearhead.doctor.probes.loss import IGNORED, ahead, shares_at_offsets
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.spec import Spec
from clearhead.doctor.state_guard import restored, without_zeros
from clearhead.errors import DataError
from clearhead.wording import listed

Forward = Callable[[Tensor], Tensor]  # ids (B, T) -> logits (B, T, V)
Results = Iterator[Finding | str]  # faults, and sentences about what holds

FRESH_TOLERANCE = 0.05  # of ln V; fresh models of this library stay within 2 %
GIVEN_AWAY = 0.5  # of the masked targets; a tenth is in the inputs unchanged, by design
BUDGET = 5e9  # floating-point operations of one forward and backward: what is done with the batch takes half a second
EXAMINED = (*SOUND, "storage", "memory", "norms", "sources", "paths")
EXAMINED_BY_GRADIENT = "gradients"
OF_A_TRAINING = {"D15", "D16", "O01", "O02", "O04", "O11"}  # what no model shows by itself
STOPPING = {"A13"}  # a warning elsewhere; what this library trains has no parameter without an effect


@dataclass(frozen=True)
class PreflightReport:
    """The faults, and for each question that found none, what holds."""

    findings: tuple[Finding, ...]
    shown: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether there is no fault."""
        return not self.findings

    def line(self) -> str:
        """The result in one line."""
        if self.passed:
            return "preflight passed: " + ", ".join(self.shown)
        more = f" (and {', '.join(f.id for f in self.findings[1:])})" if len(self.findings) > 1 else ""
        return f"preflight failed: {self.findings[0].sentence}{more}"


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

    1. The doctor's quick level: no future leak, independent rows, a gradient for every parameter, and the rest.
    2. The same of this very batch: other tokens later in a row move no logit. (Not if bidirectional.)
    3. A fresh model's loss on this batch is near ln V.
    4. Every parameter is in the optimizer once.
    5. The targets are the inputs shifted by one. If bidirectional: most are not in the inputs at their position.

    Args:
        inputs, targets: (B, T), as training uses them; targets of -100 are not counted.
        optimizer_parameters: everything that the optimizer moves.
        spec: what the model is meant to be, with its kind, and whether it is fresh.
        forward: ids (B, T) -> logits (B, T, V), as training calls the model; the model itself by default. A
            translator's holds a source.
    """
    parameters = list(model.parameters())
    device = parameters[0].device if parameters else inputs.device
    inputs, targets = inputs.to(device), targets.to(device)
    tokens = int(min(4096, max(64, BUDGET / (6 * max(1, sum(p.numel() for p in parameters))))))
    bidirectional = spec.kind == "bidirectional"
    is_fresh = freshness(model, spec.fresh)[0]
    results = [*_examine(model, spec)]
    with restored(model), torch.no_grad():
        model.eval()
        results += [] if bidirectional else _check_batch(model, forward or model, inputs, tokens)
        results += _check_fresh(forward or model, inputs, targets, tokens) if is_fresh else []
    results += _check_optimizer(model, optimizer_parameters)
    results += _check_targets(inputs, targets, bidirectional)
    findings = tuple(result for result in results if isinstance(result, Finding))
    return PreflightReport(findings, tuple(result for result in results if isinstance(result, str)))


def _examine(model: nn.Module, spec: Spec) -> Results:
    try:
        report = check(model, replace(spec, time_first=False), only=[*EXAMINED, EXAMINED_BY_GRADIENT])
    except DataError:
        yield "no call of it without this batch was found"
        return
    yield from (fault for fault in report.findings if fault.status == "fail" or fault.id in STOPPING)
    passed = {check.name for check in report.checks if check.status in ("pass", "warn")}
    if {"dependencies", "paths"} <= passed:
        yield "no future leak"
    if "dependencies" in passed and report.kind == "bidirectional":
        yield "every token is seen from both sides"
    if "rows" in passed:
        yield "rows are independent"
    if EXAMINED_BY_GRADIENT in passed:
        yield "every parameter receives gradient"


def _check_batch(model: nn.Module, forward: Forward, inputs: Tensor, tokens: int) -> Results:
    """Copies of the batch's rows, each with its own last position: other tokens after it move no logit up to it."""
    rows, T = _affordable(inputs, tokens)
    known = torch.unique(inputs)
    if T < 2 or len(known) < 2:
        return
    rows = min(T - 1, max(4, rows))
    ids = inputs[torch.arange(rows, device=inputs.device) % len(inputs), :T]  # (R, T)
    last = torch.linspace(0, T - 2, rows).round().long().to(inputs.device)  # (R,), spread over the whole row
    is_future = torch.arange(T, device=inputs.device) > last[:, None]  # (R, T)
    generator = torch.Generator().manual_seed(0)
    shift = torch.randint(1, len(known), ids.shape, generator=generator).to(ids)
    other = torch.where(is_future, known[(torch.searchsorted(known, ids) + shift) % len(known)], ids)
    with without_zeros(model.parameters(), generator), torch.no_grad():
        moved = (forward(ids) != forward(other)).any(-1) & ~is_future  # (R, T)
    if moved.any():
        row, position = moved.nonzero()[0].tolist()
        witness = f"in this batch, other tokens after {int(last[row])} move the logits at {position}"
        yield finding((("M01", 0.5), ("M18", 0.3), ("M16", 0.2)), witness)


def _affordable(inputs: Tensor, tokens: int) -> tuple[int, int]:
    """How many rows and columns of `inputs` (B, T) make about `tokens` tokens, at least four rows of eight."""
    columns = min(inputs.shape[1], max(8, tokens // 4))
    return max(1, tokens // columns), columns


def _check_fresh(forward: Forward, inputs: Tensor, targets: Tensor, tokens: int) -> Results:
    """The loss of some rows of the batch is that of a uniform prediction."""
    rows, columns = _affordable(inputs, tokens)
    inputs, targets = inputs[:, :columns], targets[:, :columns]
    counted = (targets != IGNORED).any(-1)
    if not counted.any():
        yield "no target is counted where the loss was computed"
        return
    inputs, targets = inputs[counted][:rows], targets[counted][:rows]
    logits = forward(inputs).float()  # (B, T, V)
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none")
    losses = losses[targets.flatten() != IGNORED]  # (N,)
    V = logits.shape[-1]
    uniform, loss = math.log(V), losses.mean().item()
    chance = 4 * losses.std().item() / math.sqrt(len(losses)) if len(losses) > 1 else uniform  # four standard errors
    if abs(loss - uniform) <= FRESH_TOLERANCE * uniform + chance:
        yield f"fresh loss {loss:.3f} near ln {V} = {uniform:.3f}"
    elif not math.isfinite(loss):
        yield finding((("M14", 0.6), ("R01", 0.4)), f"the loss of this batch is {loss}")
    else:
        witness = f"its loss on this batch is {loss:.3f}; a uniform prediction has ln {V} = {uniform:.3f}"
        yield finding("E04", witness, value=loss - uniform, threshold=FRESH_TOLERANCE * uniform)


def _check_optimizer(model: nn.Module, moved: Iterable[Tensor]) -> Results:
    times = Counter(id(tensor) for tensor in moved)
    named = dict(model.named_parameters())
    inside = {id(parameter) for parameter in named.values()}
    faults = {
        ("O11", "requires_grad is False"): [name for name, p in named.items() if not p.requires_grad],
        ("O01", "in no group of the optimizer"): [n for n, p in named.items() if p.requires_grad and not times[id(p)]],
        ("O04", "more than once in the optimizer"): [name for name, p in named.items() if times[id(p)] > 1],
    }
    yield from (finding(id, f"{listed(names)}: {what}") for (id, what), names in faults.items() if names)
    strangers = sum(1 for key in times if key not in inside)
    if strangers:
        yield finding("O02", f"{strangers} tensors in the optimizer are not the model's")
    elif not any(faults.values()):
        yield f"all {len(named)} in the optimizer"


def _check_targets(inputs: Tensor, targets: Tensor, bidirectional: bool) -> Results:
    """They are the next inputs; of a bidirectional model, most are not in the inputs at their position."""
    counted = targets != IGNORED
    if not counted.any():
        yield finding("D15", "every target of this batch is -100")
        return
    if bidirectional:
        given_away = float((inputs == targets)[counted].float().mean())
        if given_away <= GIVEN_AWAY:
            yield f"{counted.float().mean():.0%} of the tokens are masked targets"
        else:
            witness = f"{given_away:.0%} of the targets are in the inputs, at their own position"
            yield finding("D16", witness, value=given_away, threshold=GIVEN_AWAY)
        return
    expected = ahead(inputs, 1)
    compared = counted & (expected >= 0)
    wrong = (compared & (expected != targets)).nonzero().tolist()
    if not compared.any() or not wrong:
        yield "targets are the next tokens" if compared.any() else "rows too short to compare targets with inputs"
        return
    row, position = wrong[0]
    witness = (
        f"{len(wrong)} of {int(compared.sum())} targets are not the next input, the first in row {row}, "
        f"position {position}: {int(targets[row, position])} instead of {int(expected[row, position])}"
    )
    shares = shares_at_offsets(targets, inputs)
    offset = next((offset for offset in (0, 2, -1, 3) if shares.get(offset) == 1.0), None)
    if offset is None:
        yield finding((("D02", 0.5), ("D03", 0.5)), witness, value=len(wrong))
        return
    meaning = {0: "they are the inputs themselves", -1: "they are the tokens before"}
    witness += f" ({meaning.get(offset, f'they are the inputs shifted by {offset}')})"
    yield finding("D02" if offset else "D01", witness, value=offset, threshold=1)
