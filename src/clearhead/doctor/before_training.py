"""The preflight: before the first step, on the real model and batch, that the training can be what it looks like."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor.borrow import borrowed, without_zeros
from clearhead.doctor.future import (
    Forward,
    affordable,
    change_of_the_future,
    gradient_into_the_future,
    make_question,
)
from clearhead.doctor.preflight_report import Fault, PreflightReport

IGNORED = -100  # a target that is not counted
FRESH_TOLERANCE = 0.05  # of ln V; fresh models of this library stay within 2 %
GIVEN_AWAY = 0.5  # of the masked targets; a tenth stands in the inputs as it is, by design
BUDGET = 5e9  # floating-point operations of one forward and backward: all checks take less than a second


def preflight(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    optimizer_parameters: Iterable[Tensor],
    *,
    fresh: bool,
    forward: Forward | None = None,
    kind: Literal["causal", "bidirectional"] = "causal",
) -> PreflightReport:
    """Examine a model and its batch; afterwards the model is bit for bit what it was.

    1. No future leak, exactly: no logit depends on a later token. If bidirectional: some does.
    2. A fresh model's loss is near ln V.
    3. Every parameter receives gradient and is in the optimizer once.
    4. The targets are the inputs shifted by one. If bidirectional: most are not what stands in their place already.

    Args:
        inputs, targets: (B, T), as training uses them; targets of -100 are not counted.
        optimizer_parameters: everything that the optimizer moves.
        fresh: whether the weights are newly drawn; trained ones have any loss.
        forward: ids (B, T) -> logits (B, T, V); the model itself by default. A translator's decoder is examined with
            a source that the function holds.
        kind: causal predicts the next token; bidirectional fills in masked ones.
    """
    causal = kind == "causal"
    parameters = list(model.parameters())
    device = parameters[0].device if parameters else inputs.device
    inputs, targets = inputs.to(device), targets.to(device)
    tokens = int(min(4096, max(64, BUDGET / (6 * max(1, sum(p.numel() for p in parameters))))))
    with borrowed(model, device):
        parts = (
            _check_future(model, forward or model, inputs, tokens, causal=causal),
            _check_learning(model, forward or model, inputs, targets, tokens=tokens, fresh=fresh),
            _check_optimizer(model, list(optimizer_parameters)),
            _check_targets(inputs, targets) if causal else _check_masked_targets(inputs, targets),
        )
    return PreflightReport(
        tuple(finding for part in parts for finding in part.findings), tuple(s for part in parts for s in part.shown)
    )


def _check_future(model: nn.Module, forward: Forward, inputs: Tensor, tokens: int, *, causal: bool) -> PreflightReport:
    """By gradient in training mode, the one that will be trained, and by change in evaluation mode, without dropout."""
    question = make_question(inputs, tokens=tokens, generator=torch.Generator().manual_seed(0))
    if question is None:
        return PreflightReport((), ("rows of one token have no future",))
    with without_zeros(model.parameters(), question.generator):
        model.train()
        by_gradient = gradient_into_the_future(model, forward, question)
        if not causal:
            return _judge_both_ways(by_gradient)
        if by_gradient:
            return PreflightReport(tuple(by_gradient), ())
        model.eval()
        by_change = change_of_the_future(forward, question)
    if by_change is None and by_gradient is None:
        return PreflightReport((), ("a future leak could not be looked for in a single token",))
    return PreflightReport(tuple(by_change or ()), () if by_change else ("no future leak",))


def _judge_both_ways(by_gradient: list[Fault] | None) -> PreflightReport:
    """What is a fault in a decoder is an encoder's purpose."""
    if by_gradient is None:
        return PreflightReport((), ("no embedding to see by whether the model looks both ways",))
    if any(finding.id == "future-leak" for finding in by_gradient):
        return PreflightReport((), ("every token is seen from both sides",))
    remedy = "an encoder's attention has no causal mask; take it out"
    blind = Fault("one-sided", "the encoder sees one side only", "no logit depends on a later token", remedy)
    return PreflightReport(tuple(by_gradient) or (blind,), ())


def _check_learning(
    model: nn.Module, forward: Forward, inputs: Tensor, targets: Tensor, *, tokens: int, fresh: bool
) -> PreflightReport:
    """The loss of some rows of the batch, and which parameters its gradient reaches."""
    rows, columns = affordable(inputs, tokens)
    inputs, targets = inputs[:, :columns], targets[:, :columns]
    counted = (targets != IGNORED).any(-1)
    if not counted.any():
        return PreflightReport((), ("no target is counted where gradients were looked for",))
    inputs, targets = inputs[counted][:rows], targets[counted][:rows]
    model.eval()
    logits = forward(inputs).float()  # (B, T, V)
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none")
    losses = losses[targets.flatten() != IGNORED]  # (N,)
    loss = losses.mean()
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    unreached = tuple(_unreached(model))
    level = _judge_fresh(losses.detach(), logits.shape[-1]) if fresh else PreflightReport((), ())
    reached = () if unreached else ("every parameter receives gradient",)
    return PreflightReport(level.findings + unreached, level.shown + reached)


def _judge_fresh(losses: Tensor, vocab_size: int) -> PreflightReport:
    even, loss = math.log(vocab_size), losses.mean().item()
    chance = 4 * losses.std().item() / math.sqrt(len(losses)) if len(losses) > 1 else even  # four standard errors
    if abs(loss - even) <= FRESH_TOLERANCE * even + chance:
        return PreflightReport((), (f"fresh loss {loss:.3f} near ln {vocab_size} = {even:.3f}",))
    finding = Fault(
        "fresh-loss",
        "the fresh model is not undecided",
        f"its loss is {loss:.3f}, even odds for {vocab_size} tokens give ln {vocab_size} = {even:.3f}",
        "make the initialisation smaller, or look for targets that the inputs give away",
    )
    return PreflightReport((finding,), ())


def _unreached(model: nn.Module) -> Iterable[Fault]:
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    unused = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if frozen:
        yield Fault("frozen", "a parameter is frozen", _list(frozen), "set requires_grad to True, or remove it")
    if unused:
        yield Fault(
            "no-gradient",
            "a parameter receives no gradient",
            _list(unused),
            "use it in forward, without detach or no_grad on the way to the loss, or remove it",
        )


def _check_optimizer(model: nn.Module, moved: list[Tensor]) -> PreflightReport:
    times = Counter(id(tensor) for tensor in moved)
    names = {id(p): name for name, p in model.named_parameters()}
    findings = []
    missing = [name for name, p in model.named_parameters() if p.requires_grad and not times[id(p)]]
    twice = [names[key] for key, count in times.items() if count > 1 and key in names]
    strangers = sum(1 for key in times if key not in names)
    if missing:
        remedy = "make the optimizer from all of model.parameters()"
        findings.append(Fault("not-in-optimizer", "a parameter is never moved", _list(missing), remedy))
    if twice:
        remedy = "list it in one group of one optimizer"
        findings.append(Fault("twice-in-optimizer", "a parameter is moved twice per step", _list(twice), remedy))
    if strangers:
        remedy = "make the optimizer after the model has its last form and device"
        where = f"{strangers} tensors in the optimizer are not the model's"
        findings.append(Fault("stranger-in-optimizer", "the optimizer moves something else", where, remedy))
    return PreflightReport(tuple(findings), () if findings else (f"all {len(names)} in the optimizer",))


def _check_targets(inputs: Tensor, targets: Tensor) -> PreflightReport:
    counted = targets != IGNORED
    if not counted.any():
        remedy = "every target is -100; give targets that are token ids"
        return PreflightReport((Fault("no-targets", "there is nothing to learn", "no target is counted", remedy),), ())
    if inputs.shape[1] < 2 or not counted[:, :-1].any():
        return PreflightReport((), ("rows too short to compare targets with inputs",))
    expected, given = inputs[:, 1:], targets[:, :-1]
    wrong = (counted[:, :-1] & (expected != given)).nonzero().tolist()
    if not wrong:
        return PreflightReport((), ("targets are the next tokens",))
    row, position = wrong[0]
    found = (
        f"{len(wrong)} of {int(counted[:, :-1].sum())} targets are not the next input, the first in row {row}, "
        f"position {position}: {int(given[row, position])} instead of {int(expected[row, position])}"
    )
    shifts = [shift for shift in (0, 2, -1, 3) if _is_shifted_by(inputs, targets, shift)]
    meaning = {0: "they are the inputs themselves", -1: "they are the tokens before"}
    known = f" ({meaning.get(shifts[0], f'they are the inputs shifted by {shifts[0]}')})" if shifts else ""
    remedy = "take targets = tokens[1:] for inputs = tokens[:-1], and shift nowhere else"
    return PreflightReport((Fault("targets-shift", "the targets are not the next tokens", found + known, remedy),), ())


def _check_masked_targets(inputs: Tensor, targets: Tensor) -> PreflightReport:
    counted = targets != IGNORED
    if not counted.any():
        remedy = "every target is -100; mask some tokens and make them the targets"
        return PreflightReport((Fault("no-targets", "there is nothing to learn", "no target is counted", remedy),), ())
    given_away = float((inputs == targets)[counted].float().mean())
    if given_away <= GIVEN_AWAY:
        return PreflightReport((), (f"{counted.float().mean():.0%} of the tokens are masked targets",))
    where = f"{given_away:.0%} of the targets stand in the inputs as they are"
    remedy = "put the mask token in the place of most of what is to be filled in"
    return PreflightReport((Fault("given-away", "the inputs give the targets away", where, remedy),), ())


def _is_shifted_by(inputs: Tensor, targets: Tensor, shift: int) -> bool:
    T = inputs.shape[1]
    if abs(shift) >= T:
        return False
    ahead = inputs[:, max(0, shift) : T + min(0, shift)]
    given = targets[:, max(0, -shift) : T - max(0, shift)]
    counted = given != IGNORED
    return bool(counted.any()) and torch.equal(ahead[counted], given[counted])


def _list(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
