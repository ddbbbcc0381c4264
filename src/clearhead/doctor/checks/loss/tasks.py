"""What a model of its kind learns within a few hundred steps: the last resort for one that trains, and is still wrong.

Statistical, and so a warning at most. A copy is trained; nothing of the model changes.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import SOUND, Skipped, finding, model_check
from clearhead.doctor.probes.loss import IGNORED
from clearhead.doctor.probes.tracing import without_dropout
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.state_guard import twin
from clearhead.doctor.subject import Subject

LARGEST = 5_000_000  # parameters
SECONDS = 120.0  # for all tasks
STEPS = 600
RATES = (3e-3, 1e-3, 1e-2)  # one that suits the model is among them
ROWS = 16
LETTERS = 8  # ids that a task is written in: a rule is learned sooner in a small alphabet
HEARD = 0.9  # of the loss of even odds: a source that is not read leaves all of it

Batch = tuple[Inputs, Tensor]  # targets (B, T)


@dataclass(frozen=True)
class LossTask:
    """Something to learn. `draw`: a batch; the same whenever the generator is in the same state."""

    name: str
    what: str
    draw: Callable[[Subject, torch.Generator], Batch]
    by_heart: bool = False  # one batch again and again
    enough: float = 0.5  # of the loss of even odds: what is below is learned


@model_check(
    "W01",
    "tasks",
    order=360,
    covers=("W01", "W02"),
    holds="a copy learns a batch by heart, and the tasks that such a model must learn",
    needs=SOUND,
    level="deep",
    of_tokens=True,
)
def tasks(subject: Subject) -> list[Finding]:
    """One batch by heart, and what needs attention to the right places: to copy, to reverse, to go on, to fill in."""
    size = sum(parameter.numel() for parameter in subject.fresh.parameters())
    if size > LARGEST:
        raise Skipped(f"{size:,} parameters are too many to train here; up to {LARGEST:,} are")
    if len(subject.pool()) < LETTERS or subject.calling.T < 6:
        raise Skipped("its vocabulary or its rows are too small for a task")
    if subject.shifts_its_rows:
        raise Skipped("its logits are about their own token, and tasks ask for the next")
    chosen = TASKS[subject.kind]
    _train(subject, chosen[0], RATES[0], 1)  # the first one loads what the others have
    begun = time.perf_counter()
    _train(subject, chosen[0], RATES[0], 2)
    step = (time.perf_counter() - begun) / 2
    if step * STEPS * len(chosen) > SECONDS:
        raise Skipped(f"a step takes {step:.2f} s, and {SECONDS:g} s in all are spent on tasks")
    findings = []
    for task in chosen:
        reached = list(_attempts(subject, task, begun + SECONDS))
        best = min(reached, default=math.inf)
        if best < task.enough:
            subject.journal.paths.append(f"learns {task.what}")
            continue
        if len(reached) < len(RATES):
            subject.journal.paths.append(f"{task.what}: not judged, as {SECONDS:g} s were over")
            continue
        rates = ", ".join(f"{rate:g}" for rate in RATES)
        witness = f"{task.name}: after {STEPS} steps at rates {rates} the loss is {best:.0%} of even odds"
        id = "W01" if task.by_heart else "W02"
        findings.append(finding(id, witness, value=best, threshold=task.enough, status="warn"))
    return findings


def _attempts(subject: Subject, task: LossTask, deadline: float) -> Iterator[float]:
    for rate in RATES:
        if time.perf_counter() > deadline:
            return
        reached = _train(subject, task, rate, STEPS)
        yield reached
        if reached < task.enough:
            return


def _train(subject: Subject, task: LossTask, rate: float, steps: int) -> float:
    """The mean of the last losses, of that of even odds; ends as soon as the task is learned."""
    model = twin(subject.fresh)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.95))
    generator = subject.generator(31)
    losses: list[float] = []
    batch = task.draw(subject, generator)
    for step in range(steps):
        if not task.by_heart:
            batch = task.draw(subject, generator)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 20)
        losses.append(_step(subject, model, optimizer, batch))
        recent = sum(losses[-5:]) / min(5, len(losses))
        if step >= 5 and recent < 0.5 * task.enough:
            return recent
    return sum(losses[-5:]) / min(5, len(losses))


def _step(subject: Subject, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    inputs, targets = batch
    with torch.enable_grad(), without_dropout():
        logits = subject.convention.logits(model, inputs).float()
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    value = float(loss.detach()) / math.log(LETTERS)
    return value if math.isfinite(value) else math.inf


def _letters(subject: Subject, shape: tuple[int, int], generator: torch.Generator, *, source: bool = False) -> Tensor:
    pool = (subject.source_pool if source else subject.pool())[:LETTERS]
    return pool[torch.randint(len(pool), shape, generator=generator)]


def _next(rows: Tensor, begin: int) -> Batch:
    """Rows whose tokens are to be predicted from those before them, from the position `begin` on."""
    targets = torch.full_like(rows, IGNORED)
    targets[:, begin - 1 : -1] = rows[:, begin:]
    return Inputs(rows, labels=rows), targets


def _by_heart(subject: Subject, generator: torch.Generator) -> Batch:
    rows = _letters(subject, (4, subject.calling.T), generator)
    return _next(rows, 3)  # rows may begin alike


def _copied(subject: Subject, generator: torch.Generator) -> Batch:
    half = subject.calling.T // 2
    first = _letters(subject, (ROWS, half), generator)
    return _next(_filled(torch.cat((first, first), dim=1), subject), subject.calling.T - half)


def _reversed(subject: Subject, generator: torch.Generator) -> Batch:
    half = subject.calling.T // 2
    first = _letters(subject, (ROWS, half), generator)
    return _next(_filled(torch.cat((first, first.flip(1)), dim=1), subject), subject.calling.T - half)


def _continued(subject: Subject, generator: torch.Generator) -> Batch:
    """Patterns of three or four tokens, over and over: what came after such a token before comes again."""
    T = subject.calling.T
    periods = torch.randint(3, 5, (ROWS, 1), generator=generator)
    pattern = torch.stack([torch.randperm(LETTERS, generator=generator)[:4] for _ in range(ROWS)])
    rows = subject.pool()[pattern.gather(1, torch.arange(T).expand(ROWS, T) % periods)]
    return _next(rows, 5)


def _filled(rows: Tensor, subject: Subject) -> Tensor:
    """As long as the model is called with; some take no other length."""
    short = subject.calling.T - rows.shape[1]
    return torch.cat((rows[:, :1].expand(-1, short), rows), dim=1) if short else rows


def _translated(subject: Subject, generator: torch.Generator) -> Batch:
    """A target that says the source again, letter by letter."""
    S, T = subject.calling.S, subject.calling.T
    places = torch.randint(LETTERS, (ROWS, S), generator=generator)
    source, target = subject.source_pool[:LETTERS][places], subject.pool()[:LETTERS][places]
    n = min(S, T)
    ids, targets = torch.full((ROWS, T), int(subject.pool()[0])), torch.full((ROWS, T), IGNORED)
    ids[:, 1:n], targets[:, :n] = target[:, : n - 1], target[:, :n]
    return Inputs(ids, source, labels=ids), targets


def _source_by_heart(subject: Subject, generator: torch.Generator) -> Batch:
    inputs, targets = _by_heart(subject, generator)
    return replace(inputs, source=_letters(subject, (4, subject.calling.S), generator, source=True)), targets


def _masked(rows: Tensor, subject: Subject, hidden: Tensor) -> Batch:
    mask = int(subject.pool()[LETTERS % len(subject.pool())])
    return Inputs(rows.masked_fill(hidden, mask), labels=rows), rows.masked_fill(~hidden, IGNORED)


def _filled_in(subject: Subject, generator: torch.Generator) -> Batch:
    """Rows that say everything twice, with one of two tokens hidden here and there."""
    half = subject.calling.T // 2
    first = _letters(subject, (ROWS, half), generator)
    rows = _filled(torch.cat((first, first), dim=1), subject)
    hidden = torch.zeros_like(rows, dtype=torch.bool)
    which = torch.randint(3, (ROWS, half), generator=generator)  # the first, the second, or neither
    hidden[:, -2 * half :] = torch.cat((which == 0, which == 1), dim=1)
    return _masked(rows, subject, hidden)


def _holes_by_heart(subject: Subject, generator: torch.Generator) -> Batch:
    rows = _letters(subject, (4, subject.calling.T), generator)
    return _masked(rows, subject, torch.arange(subject.calling.T).expand_as(rows) % 3 == 1)


HEART, AGAIN = "a batch of four rows by heart", "every second half says the first one again"
TASKS: dict[str, tuple[LossTask, ...]] = {
    "causal": (
        LossTask(HEART, "one batch by heart", _by_heart, by_heart=True),
        LossTask(AGAIN, "to copy", _copied),
        LossTask("every second half is the first one backwards", "to reverse", _reversed),
        LossTask("a pattern goes on as it began", "induction", _continued),
    ),
    "seq2seq": (
        LossTask(HEART, "one batch by heart", _source_by_heart, by_heart=True),
        LossTask("the target says what the source says", "to copy the source", _translated, enough=HEARD),
    ),
    "bidirectional": (
        LossTask(HEART, "one batch by heart", _holes_by_heart, by_heart=True),
        LossTask("what is hidden stands elsewhere in the row", "to fill in", _filled_in),
    ),
}
