"""Whether the order of tokens matters, and whether rotary positions measure distance."""

from dataclasses import replace

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import POSITION_TABLE
from clearhead.doctor.checks.base import SOUND, Causes, Skipped, finding, model_check
from clearhead.doctor.checks.parts.effects import idle_table
from clearhead.doctor.probes.attention import AttentionCall, attentions
from clearhead.doctor.probes.dependency import swapped_rows
from clearhead.doctor.probes.localization import first_guilty, locate, token_reading, trace_modules
from clearhead.doctor.probes.locations import owner_of, place_of_call
from clearhead.doctor.probes.tracing import ModuleCall
from clearhead.doctor.report.findings import Finding, Status, Where
from clearhead.doctor.subject import Subject

UNEVEN = 1e-3  # of the scores' spread
SAME = 1e-5  # of the largest number: two results that are equal but for rounding
ROUNDED = 0.05  # of the scores' spread: a rotation that is off by less was rounded, not mistaken


@model_check(
    "P01",
    "positions",
    order=180,
    covers=("P01", "P05", "P06", "P08", "S07"),
    holds="the order of the tokens matters, and rotary scores depend on the distance alone",
    needs=(*SOUND, "sources"),
)
def positions(subject: Subject) -> list[Finding]:
    """Swapping two tokens changes what others make of them."""
    if subject.convention.has_source:
        findings = _source_order(subject)
        if findings:
            return findings
    return _order_at_first_mixing(subject) if subject.looks_back_only else _bag(subject)


def _exchanged(ids: Tensor, i: int, j: int) -> Tensor:
    order = torch.arange(ids.shape[1])
    order[i], order[j] = j, i
    return ids[:, order]


def _source_order(subject: Subject) -> list[Finding]:
    inputs = subject.inputs(2, salt=7)
    assert inputs.source is not None
    n = inputs.source.shape[1]
    before = subject.run(inputs)
    after = subject.run(replace(inputs, source=_exchanged(inputs.source, 0, n - 2)))
    value = float((after - before).abs().max()) / float(before.abs().max())
    if value > SAME:
        return []
    witness = f"swapping tokens 0 and {n - 2} of the source moves no logit"
    idle = _idle(subject)
    where = idle or _first_mixing_of_source(subject)
    causes: Causes = (("S07", 0.9), ("P01", 0.1))
    status: Status = "fail" if idle is not None or subject.convention.reads_words("source") else "warn"
    return [finding(causes, witness, value=value, threshold=SAME, where=where, status=status)]


def _bag(subject: Subject) -> list[Finding]:
    inputs = subject.inputs(2, salt=7)
    i, j = 1, subject.calling.T - 2
    if i >= j:
        raise Skipped("rows are too short to swap two tokens")
    before, after = subject.run(inputs), subject.run(replace(inputs, ids=_exchanged(inputs.ids, i, j)))
    after = after[:, [j if k == i else i if k == j else k for k in range(after.shape[1])]]
    value = float((after - before).abs().max()) / float(before.abs().max())
    if value > SAME:
        return []
    witness = f"swapping tokens {i} and {j} swaps their logits and moves no other: the order does not matter"
    idle = _idle(subject)
    # words have an order; numbers may be a set, as the points of a cloud are
    status: Status = "fail" if idle is not None or subject.convention.reads_words("ids") else "warn"
    return [finding("P01", witness, value=value, threshold=SAME, where=idle, status=status)]


def first_mixing(subject: Subject) -> tuple[ModuleCall, int, list[ModuleCall]] | None:
    """The first module in which tokens meet, the number of its call, and the calls of the pass with equal rows."""
    base, changed, _ = swapped_rows(subject.inputs(), subject.pool(), subject.generator(1))
    n = subject.calling.T

    def meet(alive: Tensor) -> bool:
        return bool((alive & ~torch.eye(n, dtype=torch.bool)).any())

    before, after = trace_modules(subject.model, subject.run, base, changed)
    call = first_guilty(before, after, token_reading(n), meet)
    return None if call is None else (call, next(k for k, other in enumerate(after) if other is call), before)


def _order_at_first_mixing(subject: Subject) -> list[Finding]:
    """A deep causal model without positions knows the order at its logits all the same: the first mixing is asked."""
    mixing = first_mixing(subject)
    n = subject.calling.T
    if mixing is None or n < 4:
        return _rotation(subject, None)
    call, number, first = mixing
    base, _, _ = swapped_rows(subject.inputs(), subject.pool(), subject.generator(1))
    second = subject.modules_called(replace(base, ids=_exchanged(base.ids, n - 3, n - 2)))
    if number >= len(first) or not first[number].outputs:
        return []
    before, after = (_last(calls[number].outputs[0], n) for calls in (first, second))
    if before is None or after is None:
        return []
    value = float((after - before).abs().max()) / float(before.abs().max())
    rotation = _rotation(subject, call)
    if value > SAME or rotation:
        return rotation
    is_told = _is_told_before(first[number], second[number], n) or _is_told_later(subject)
    if is_told or not _is_seen_by_the_last(subject, base, number):
        return []
    tables = _tables(subject)
    name = type(call.module).__name__
    where = _idle(subject) or place_of_call(call)
    witness = f"swapping tokens {n - 3} and {n - 2} does not move what {call.name or name} makes of the last token"
    extra = f"; {tables[0][0]} is there, and no attention knows of it" if tables else ""
    return [
        finding("P01", witness + extra, value=value, threshold=SAME, where=where, status="fail" if tables else "warn")
    ]


def _is_seen_by_the_last(subject: Subject, base: Inputs, number: int) -> bool:
    """Whether what a module makes of the last token depends on those exchanged: one becomes the other."""
    n = subject.calling.T
    ids = base.ids.clone()
    ids[:, n - 3] = ids[:, n - 2]
    calls = trace_modules(subject.model, subject.run, base, replace(base, ids=ids))
    before, after = (_last(traced[number].outputs[0], n) for traced in calls)
    return before is not None and after is not None and not torch.equal(before, after)


def _is_told_before(call: ModuleCall, exchanged: ModuleCall, n: int) -> bool:
    """Whether a module is given other vectors where tokens n - 3 and n - 2 are exchanged, and not the same in turn.

    Attention may all the same look at one of them only, and then it moves nothing.
    """
    for before, after in zip(call.inputs, exchanged.inputs, strict=False):
        axes = [axis for axis, size in enumerate(before.shape) if size == n]
        if before.shape != after.shape or len(axes) != 1 or before.dim() != 3 or torch.equal(before, after):
            continue  # no tokens: a table of positions, say, of which nothing need be made
        turned = after.index_select(axes[0], torch.tensor([*range(n - 3), n - 2, n - 3, n - 1]).to(after.device))
        if float((turned - before).abs().max()) > SAME * float(before.abs().max()):
            return True
    return False


def _is_told_later(subject: Subject) -> bool:
    """Whether scores of equal tokens differ in any attention: some models give positions to some layers only."""
    inputs = subject.inputs(2)
    operations = subject.operations(Inputs(torch.full_like(inputs.ids, int(inputs.ids[0, 0])), inputs.source))
    n = subject.calling.T
    for attention in attentions(operations):
        if attention.allowed.shape == (n, n) and attention.scores is not None:
            scores = attention.scores[:, _is_seen(attention.scores)]
            if float((scores - scores[:, :1]).abs().max()) > SAME * float(scores.abs().max()):
                return True
    return False


def _is_seen(scores: Tensor) -> Tensor:
    """(T, T), True where a token looks back at what no mask hides, for scores (N, T, T)."""
    return torch.ones(scores.shape[1:], dtype=torch.bool).tril() & (scores > -1e4).all(0)


def _tables(subject: Subject) -> list[tuple[str, Tensor]]:
    """Parameters and buffers that are called after positions."""
    named = (*subject.model.named_parameters(), *subject.model.named_buffers())
    return [(name, tensor) for name, tensor in named if POSITION_TABLE.search(name)]


def _idle(subject: Subject) -> Where | None:
    """The owner of a table of positions that moves nothing."""
    name = idle_table(subject, _tables(subject))
    return None if name is None else owner_of(subject.model, name)


def _first_mixing_of_source(subject: Subject) -> Where:
    """The first module in which tokens of the source meet."""
    base, changed, _ = swapped_rows(subject.inputs(), subject.source_pool, subject.generator(2), source=True)
    n = subject.calling.S
    meet = lambda alive: bool((alive & ~torch.eye(n, dtype=torch.bool)).any())  # noqa: E731
    return locate(subject.model, subject.run, base, changed, token_reading(n), meet)[0]


def _last(tensor: Tensor, n: int) -> Tensor | None:
    axes = [axis for axis, size in enumerate(tensor.shape) if size == n]
    return tensor.select(axes[0], n - 1) if len(axes) == 1 else None


def _rotation(subject: Subject, call: ModuleCall | None) -> list[Finding]:
    """With equal tokens everywhere a score depends on the distance only, unless positions were added to the tokens."""
    inputs = subject.inputs(2)
    equal = Inputs(torch.full_like(inputs.ids, int(inputs.ids[0, 0])), inputs.source)
    if call is None or not _is_even_before(subject, equal, call):
        return []
    operations = subject.operations(equal)
    n = subject.calling.T
    first = next((a for a in attentions(operations) if a.allowed.shape == (n, n) and a.scores is not None), None)
    if first is None or first.scores is None or not _is_same_place(subject, first.call, call):
        return []
    scores = first.scores.double()  # (N, T, T)
    visible = _is_seen(scores)
    spread = float(scores[:, visible].std())
    if spread < 1e-6 * max(1.0, float(scores[:, visible].abs().max())):
        return _turned_values(subject, first, call)
    worst, (distance, index) = _unevenness(scores, visible)
    if worst < UNEVEN * spread:
        return _turned_values(subject, first, call)
    if not _turns(first.query, n) and not _turns(first.key, n):
        return []  # positions come in otherwise: a bias on the scores may depend on the place as well
    own = scores.diagonal(0, 1, 2)[:, :, None]
    # a softmax does not see what is added to a whole row; what multiplies it is a temperature of the position's own
    if any(_is_of_distance(row, visible, UNEVEN * spread) for row in (scores - own, scores / own * spread)):
        return []
    witness = (
        f"equal tokens at distance {distance} score differently at positions {distance} and {index + distance}, "
        f"by {worst / spread:.1e} of the scores' spread"
    )
    one_sided = _depends_on_one(scores, visible)
    causes: Causes = (("P06", 0.8), ("P05", 0.2)) if one_sided else (("P05", 0.7), ("P06", 0.3))
    if worst / spread < ROUNDED:
        causes = (("P08", 0.7), ("P05", 0.2), ("P06", 0.1))
    return [finding(causes, witness, value=worst / spread, threshold=UNEVEN, where=place_of_call(call))]


def _unevenness(scores: Tensor, visible: Tensor) -> tuple[float, tuple[int, int]]:
    """How far scores (N, T, T) at one distance differ at most, at which distance and at which place."""
    n = len(visible)
    worst, at = 0.0, (0, 0)
    for distance in range(1, n - 2):
        line = scores.diagonal(-distance, 1, 2)[:, visible.diagonal(-distance)]  # (N, n - distance)
        if line.shape[1] > 1 and float((line - line[:, :1]).abs().max()) > worst:
            worst = float((line - line[:, :1]).abs().max())
            at = (distance, int((line - line[:, :1]).abs().amax(0).argmax()))
    return worst, at


def _is_of_distance(scores: Tensor, visible: Tensor, least: float) -> bool:
    """Whether scores (N, T, T) vary, by more than the least, and only with the distance."""
    spread = float(scores[:, visible].std())
    return spread > least and _unevenness(scores, visible)[0] < UNEVEN * spread


def _turns(tensor: Tensor | None, n: int) -> bool:
    """Whether the vectors of equal tokens point elsewhere at other positions; being longer there is no turn."""
    axes = [] if tensor is None else [axis for axis, size in enumerate(tensor.shape) if size == n]
    if tensor is None or len(axes) != 1:
        return True
    lines = tensor.detach().double().movedim(axes[0], 0)  # (T, ..., K)
    alike = torch.nn.functional.cosine_similarity(lines, lines[:1].expand_as(lines), dim=-1)
    return bool((alike < 1 - SAME).any())


def _is_same_place(subject: Subject, attention: ModuleCall, mixing: ModuleCall) -> bool:
    """Whether tokens first meet in this attention, and not in a convolution or a recurrence before it."""
    name = next((name for name, module in subject.model.named_modules() if module is attention.module), "")
    return f"{name}.".startswith(f"{mixing.name}.") or not name or not mixing.name


def _turned_values(subject: Subject, first: AttentionCall, call: ModuleCall) -> list[Finding]:
    """Of equal tokens every position has the same value; turned by their positions they differ, at equal length."""
    value, n = first.value, subject.calling.T
    axes = [] if value is None else [axis for axis, size in enumerate(value.shape) if size == n]
    if value is None or len(axes) != 1 or value.dim() < 3:
        return []
    lines = value.detach().movedim(axes[0], 0)  # (T, ..., K)
    lengths = lines.flatten(1).norm(dim=-1)
    off = float((lines - lines[-1:])[n // 2 : -1].abs().max()) / (float(lines.abs().max()) or 1.0)
    if off < 1e-3 or float((lengths - lengths[-1])[n // 2 :].abs().max()) > 1e-3 * float(lengths[-1]):
        return []
    witness = (
        f"equal tokens have other values at other positions, by {off:.1e}, and of the same length: they are rotated"
    )
    return [finding((("P06", 0.9), ("P05", 0.1)), witness, value=off, threshold=1e-3, where=place_of_call(call))]


def _depends_on_one(scores: Tensor, visible: Tensor) -> bool:
    """Whether scores vary with the query's position alone, or with the key's alone."""
    n = len(visible)
    rows = max(float((scores[:, i, visible[i]] - scores[:, i, visible[i]][:, :1]).abs().max()) for i in range(1, n))
    columns = max(
        float((scores[:, visible[:, j], j] - scores[:, visible[:, j], j][:, :1]).abs().max()) for j in range(n - 1)
    )
    return min(rows, columns) < 1e-4 * max(rows, columns)


def _is_even_before(subject: Subject, equal: Inputs, call: ModuleCall) -> bool:
    """Whether what the first mixing module reads is the same at every position."""
    calls = subject.modules_called(equal)
    same = next((other for other in calls if other.name == call.name), None)
    if same is None or not same.inputs:
        return False
    hidden = next((t for t in same.inputs if t.dim() == 3 and subject.calling.T in t.shape), None)
    if hidden is None:
        return False
    axis = list(hidden.shape).index(subject.calling.T)
    return float((hidden - hidden.narrow(axis, 0, 1)).abs().max()) <= SAME * float(hidden.abs().max())
