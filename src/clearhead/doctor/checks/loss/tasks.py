"""What a model of its kind learns in a few hundred steps: the last resort for one that trains and is still wrong.

The result is statistical, and so a warning at most. A copy is trained; the model itself does not change.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import SOUND, Finding, Skipped, Subject, finding, model_check
from clearhead.doctor.probes.loss import IGNORED
from clearhead.doctor.state_guard import twin

LARGEST = 5_000_000  # parameters
SECONDS = 120.0  # for all tasks
STEPS = 600
RATES = (3e-3, 1e-3, 1e-2)  # one of them suits the model
ROWS, FEW_ROWS = 16, 4  # of a batch; few to learn by heart
LETTERS = 8  # ids that a task is written in: a rule is learned sooner in a small alphabet
HEARD = 0.9  # of the loss of uniform probabilities: a source that is not read leaves all of it

Batch = tuple[Inputs, Tensor]  # targets (B, T)


@dataclass(frozen=True)
class LossTask:
    """Something to learn. `draw`: a batch; the same whenever the generator is in the same state."""

    name: str
    what: str
    draw: Callable[[Subject, torch.Generator], Batch]
    by_heart: bool = False  # one batch again and again
    enough: float = 0.5  # of the loss of uniform probabilities: what is below is learned


@model_check("W01", "tasks", order=360, covers=("W02",), needs=SOUND, level="deep", of_tokens=True)
def tasks(subject: Subject) -> list[Finding]:
    """A copy learns a batch by heart, and the tasks that such a model must learn."""
    size = sum(parameter.numel() for parameter in subject.fresh.parameters())
    if size > LARGEST:
        raise Skipped(f"{size:,} parameters are too many to train here; the limit is {LARGEST:,}")
    if len(subject.pool) < LETTERS or subject.calling.T < 6:
        raise Skipped("its vocabulary or its rows are too small for a task")
    if subject.shifts_its_rows:
        raise Skipped("its logits predict their own token, and tasks ask for the next")
    chosen = TASKS[subject.kind]
    _train(subject, chosen[0], RATES[0], 1)  # the first step loads what the others need
    begun = time.perf_counter()
    _train(subject, chosen[0], RATES[0], 2)
    step = (time.perf_counter() - begun) / 2
    if step * STEPS * len(chosen) > SECONDS:
        raise Skipped(f"a step takes {step:.2f} s, and all tasks together may take {SECONDS:g} s")
    findings = []
    for task in chosen:
        reached = list(_attempts(subject, task, begun + SECONDS))
        best = min(reached, default=math.inf)
        if best < task.enough:
            subject.journal.paths.append(f"learns {task.what}")
        elif len(reached) < len(RATES):
            subject.journal.paths.append(f"{task.what}: not judged, as {SECONDS:g} s were over")
        else:
            rates = ", ".join(f"{rate:g}" for rate in RATES)
            reached_loss = f"the loss is {best:.0%} of that of uniform probabilities"
            witness = f"{task.name}: after {STEPS} steps at rates {rates} {reached_loss}"
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
    """The mean of the last losses, relative to that of uniform probabilities; ends as soon as the task is learned."""
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
            break
    return recent


def _step(subject: Subject, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    inputs, targets = batch
    logits = subject.run(inputs, model=model, graph=True).float()
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    value = float(loss.detach()) / math.log(LETTERS)
    return value if math.isfinite(value) else math.inf


def _letters(pool: Tensor, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return pool[torch.randint(min(LETTERS, len(pool)), shape, generator=generator)]


def _next(rows: Tensor, begin: int) -> Batch:
    """Rows whose tokens are to be predicted from those before them, from position `begin` on."""
    targets = torch.full_like(rows, IGNORED)
    targets[:, begin - 1 : -1] = rows[:, begin:]
    return Inputs(rows, labels=rows), targets


def _by_heart(subject: Subject, generator: torch.Generator) -> Batch:
    return _next(_letters(subject.pool, (FEW_ROWS, subject.calling.T), generator), 3)  # rows may begin alike


def _twice(subject: Subject, generator: torch.Generator, *, backwards: bool = False) -> Tensor:
    """Rows (B, T) whose second half says the first one again. The first token is repeated if T is odd."""
    half = subject.calling.T // 2
    first = _letters(subject.pool, (ROWS, half), generator)
    extra = first[:, :1].expand(-1, subject.calling.T - 2 * half)
    return torch.cat((extra, first, first.flip(1) if backwards else first), dim=1)


def _copied(subject: Subject, generator: torch.Generator) -> Batch:
    return _next(_twice(subject, generator), subject.calling.T - subject.calling.T // 2)


def _reversed(subject: Subject, generator: torch.Generator) -> Batch:
    return _next(_twice(subject, generator, backwards=True), subject.calling.T - subject.calling.T // 2)


def _continued(subject: Subject, generator: torch.Generator) -> Batch:
    """Patterns of three or four tokens, repeated: what followed a token before follows it again."""
    T = subject.calling.T
    periods = torch.randint(3, 5, (ROWS, 1), generator=generator)
    pattern = torch.stack([torch.randperm(LETTERS, generator=generator)[:4] for _ in range(ROWS)])
    return _next(subject.pool[pattern.gather(1, torch.arange(T).expand(ROWS, T) % periods)], 5)


def _translated(subject: Subject, generator: torch.Generator) -> Batch:
    """A target that repeats the source letter by letter."""
    S, T = subject.calling.S, subject.calling.T
    letters = torch.randint(LETTERS, (ROWS, S), generator=generator)
    target, n = subject.pool[letters], min(S, T)
    ids, targets = torch.full((ROWS, T), int(subject.pool[0])), torch.full((ROWS, T), IGNORED)
    ids[:, 1:n], targets[:, :n] = target[:, : n - 1], target[:, :n]
    return Inputs(ids, subject.source_pool[letters], labels=ids), targets


def _source_by_heart(subject: Subject, generator: torch.Generator) -> Batch:
    inputs, targets = _by_heart(subject, generator)
    return replace(inputs, source=_letters(subject.source_pool, (FEW_ROWS, subject.calling.S), generator)), targets


def _masked(rows: Tensor, subject: Subject, hidden: Tensor) -> Batch:
    mask = int(subject.pool[LETTERS % len(subject.pool)])
    return Inputs(rows.masked_fill(hidden, mask), labels=rows), rows.masked_fill(~hidden, IGNORED)


def _filled_in(subject: Subject, generator: torch.Generator) -> Batch:
    """Rows that say everything twice, with one of two equal tokens hidden here and there."""
    rows, half = _twice(subject, generator), subject.calling.T // 2
    hidden = torch.zeros_like(rows, dtype=torch.bool)
    which = torch.randint(3, (ROWS, half), generator=generator)  # the first, the second, or neither
    hidden[:, -2 * half :] = torch.cat((which == 0, which == 1), dim=1)
    return _masked(rows, subject, hidden)


def _holes_by_heart(subject: Subject, generator: torch.Generator) -> Batch:
    rows = _letters(subject.pool, (FEW_ROWS, subject.calling.T), generator)
    return _masked(rows, subject, torch.arange(subject.calling.T).expand_as(rows) % 3 == 1)


HEART = "a batch of four rows by heart"
TASKS: dict[str, tuple[LossTask, ...]] = {
    "causal": (
        LossTask(HEART, "one batch by heart", _by_heart, by_heart=True),
        LossTask("every second half repeats the first", "to copy", _copied),
        LossTask("every second half is the first one backwards", "to reverse", _reversed),
        LossTask("a pattern goes on as it began", "induction", _continued),
    ),
    "seq2seq": (
        LossTask(HEART, "one batch by heart", _source_by_heart, by_heart=True),
        LossTask("the target repeats the source", "to copy the source", _translated, enough=HEARD),
    ),
    "bidirectional": (
        LossTask(HEART, "one batch by heart", _holes_by_heart, by_heart=True),
        LossTask("what is hidden stands elsewhere in the row", "to fill in", _filled_in),
    ),
}
