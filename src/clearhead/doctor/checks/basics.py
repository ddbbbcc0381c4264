"""What must hold before anything else can be asked: finite numbers, the same answer twice, rows that keep apart."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import Causes, Skipped, finding, model_check
from clearhead.doctor.checks.locations import place_of
from clearhead.doctor.checks.own_batch import finite_on_own_batch
from clearhead.doctor.probes.attention import attentions
from clearhead.doctor.probes.dependency import THRESHOLD
from clearhead.doctor.probes.flow import Flow, read_by
from clearhead.doctor.probes.localization import locate, row_reading
from clearhead.doctor.probes.locations import place_of_call
from clearhead.doctor.probes.norms import is_norm
from clearhead.doctor.probes.products import NORMS
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules, recorded_ops, without_dropout
from clearhead.doctor.problems import message_of
from clearhead.doctor.report.findings import Finding, Status, Where
from clearhead.doctor.subject import Subject

ROW_FAULTS = ("A10", "P02", "N02", "M15")

ROWS, FEW_ROWS = 5, 3  # of a batch; fewer of a large model in a hurry

DRAWS = {"rand", "randn", "rand_like", "randn_like", "randint", "randperm", "bernoulli", "normal", "multinomial"} | {
    "bernoulli_", "normal_", "uniform_", "exponential_", "random_"
}  # fmt: skip
SORTS = {"argsort", "sort", "topk"}


@model_check(
    "M14", "finite", order=10, covers=("M14", "M07", "M05", "M04", "A03", "R01"), holds="every logit is a number"
)
def finite(subject: Subject) -> list[Finding]:
    """Every number that comes out is one, with the weights as they came."""
    inputs = subject.inputs(3)
    with torch.no_grad(), recorded_modules(subject.fresh) as calls:
        logits = subject.run(inputs, model=subject.fresh)
    bad = ~logits.isfinite()
    if not bad.any():
        return finite_on_own_batch(subject)
    where = first_spoilt(calls)
    is_nan = bool(logits.isnan().any())
    row, position = (int(part) for part in bad.any(-1).nonzero()[0])
    witness = f"logits {position} of row {row} are {'NaN' if is_nan else 'infinite'} for ordinary tokens"
    causes = _empty_rows(subject, inputs) if is_nan else (("R01", 0.8), ("M14", 0.2))
    return [finding(causes, witness, value=float(bad.float().mean()), where=where)]


def first_spoilt(calls: Sequence[ModuleCall]) -> Where:
    """The first module that makes NaN of numbers."""
    guilty = next((call for call in calls if _spoilt(call.outputs) and not _spoilt(call.inputs)), None)
    return place_of_call(guilty)


def _spoilt(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether there is a NaN; masks may well hold infinities."""
    return any(bool(tensor.isnan().any()) for tensor in tensors)


def _empty_rows(subject: Subject, inputs: Inputs) -> Causes:
    """Which mask it is that leaves a query without any key."""
    for attention in attentions(subject.operations(inputs, model=subject.fresh)):
        allowed = attention.allowed
        if attention.axis_is_wrong:  # what is hidden in every head leaves nothing to share out among them
            return (("A03", 0.8), ("M14", 0.2))
        if allowed.any(-1).all() or allowed.shape[0] != allowed.shape[1]:
            continue
        if torch.equal(allowed, torch.ones_like(allowed).tril(-1)):
            return (("M07", 0.8), ("M14", 0.2))
        if torch.equal(allowed, torch.ones_like(allowed).triu(1)):
            return (("M05", 0.7), ("M04", 0.2), ("M14", 0.1))
        return (("M14", 0.7), ("M05", 0.2), ("M07", 0.1))
    return (("M14", 0.5), ("R01", 0.5))


@model_check(
    "A08",
    "deterministic",
    order=30,
    covers=("A08", "V01", "T09", "T08", "I05", "K06"),
    holds="the same batch gives the same bits twice in eval()",
    needs=("finite",),
)
def deterministic(subject: Subject) -> list[Finding]:
    """The same batch gives the same bits twice in evaluation."""
    inputs, (first, second, drew) = subject.inputs(3), subject.repeated
    if subject.repeated.is_same:
        return []
    change = float((first - second).abs().max())
    if subject.device.type != "cpu" and change <= THRESHOLD * float(first.abs().max()):
        return []  # an accelerator adds in any order: rounding, which every later check measures as its noise floor
    dropping = without_dropout()
    with torch.no_grad(), dropping:
        subject.convention.logits(subject.model, inputs)
    witness = f"the same batch twice in eval() moves logits by {change:.1e}"
    switched = _switched(subject)
    if subject.drops_in_evaluation:
        call = dropping.dropouts[0]
        with torch.no_grad(), recorded_ops(lambda name: name == call.name) as ops:
            subject.convention.logits(subject.model, inputs)
        same = next((op for op in ops.calls if (op.file, op.line) == (call.file, call.line)), call)
        where = place_of(subject, same)
        if switched:
            message = f"{witness}: a call puts {switched} into training mode"
            return [finding((("V01", 0.8), ("A08", 0.2)), message, value=change, where=where)]
        return [
            finding(
                (("A08", 0.8), ("I05", 0.2)),
                f"{witness}; {call.name} ran with p={call.options['p']:g}",
                value=change,
                where=where,
            )
        ]
    causes = (("T09", 0.8), ("A08", 0.2)) if drew else (("T08", 0.8), ("K06", 0.1), ("T09", 0.1))
    status: Status = "fail"
    if drew and not dropping.dropouts and _only_orders(subject):  # as where patches to be hidden are drawn
        status, witness = "warn", f"{witness}; all that it draws is an order, which may be meant"
    return [finding(causes, witness, value=change, where=_first_unlike(subject, inputs), status=status)]


def _only_orders(subject: Subject) -> bool:
    """Whether random numbers are sorted and read by nothing else."""
    inputs = subject.inputs(3)
    operations = subject.operations(inputs)
    flow = Flow(operations)
    drawn = [index for index, call in enumerate(operations) if call.name in DRAWS]
    return bool(drawn) and all(
        operations[index].name == "randperm" or {operations[reader].name for reader in flow.readers(index)} <= SORTS
        for index in drawn
    )


def _first_unlike(subject: Subject, inputs: Inputs) -> Where:
    """The first module that makes something else of the same tensors."""
    for call, other in zip(subject.modules_called(inputs), subject.modules_called(inputs), strict=False):
        if call.module is not None and _same(call.inputs, other.inputs) and not _same(call.outputs, other.outputs):
            return place_of_call(call)
    return Where()


def _same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


def _switched(subject: Subject) -> str | None:
    """A module that evaluates before a call, and is in training mode after it."""
    before = {name: module.training for name, module in subject.model.named_modules()}
    subject.model.eval()
    with torch.no_grad():
        subject.run(subject.inputs(1))
    name_switched = next((name for name, module in subject.model.named_modules() if module.training), None)
    for name, module in subject.model.named_modules():
        module.training = before[name]
    return name_switched


@model_check(
    "A10",
    "rows",
    order=60,
    covers=ROW_FAULTS,
    holds="no row of a batch depends on another row, nor on its own number",
    needs=("finite", "deterministic", "memory", "layouts"),
)
def rows(subject: Subject) -> list[Finding]:
    """No row of a batch depends on another, nor on its own number in the batch."""
    axes = subject.calling.axes
    try:
        with torch.no_grad():
            _ = subject.matrix  # of T + 1 rows
    except (RuntimeError, IndexError) as error:
        message = message_of(error, 100)
        raise Skipped(f"it does not take {subject.calling.T + 1} rows at once ({message})") from None
    count = FEW_ROWS if subject.is_hurried else ROWS
    inputs = subject.inputs(count, salt=3)
    with torch.no_grad():
        base = subject.run(inputs)
    scale = float(base.std()) or 1.0
    for row in range(count):
        other = subject.inputs(count, salt=4)
        keep = torch.arange(count) == row
        changed = replace(
            inputs,
            ids=torch.where(keep[:, None], other.ids, inputs.ids),
            source=None if inputs.source is None or other.source is None
            else torch.where(keep[:, None], other.source, inputs.source),
        )  # fmt: skip
        with torch.no_grad():
            moved = (subject.run(changed) - base).abs().amax((1, 2)) / scale  # (B,)
        moved[row] = 0
        if float(moved.max()) > 1e-4:

            def forbidden(alive: torch.Tensor, row: int = row) -> bool:
                return bool(alive[torch.arange(count) != row].any())

            where, call = locate(subject.model, subject.run, inputs, changed, row_reading(count), forbidden)
            causes: Causes = (("A10", 0.8), ("N02", 0.1), ("M15", 0.1))
            by_norm = call is not None and call.module is not None and is_norm(call.module)
            if by_norm or where.op in NORMS or _averages(subject, inputs, where):
                causes = (("N02", 0.8), ("A10", 0.2))
            witness = (
                f"other tokens in row {row} move the logits of row {int(moved.argmax())} by {float(moved.max()):.1e}"
            )
            return [finding(causes, witness, value=float(moved.max()), threshold=1e-4, where=where)]
    return _numbered(subject, inputs, base, axes.counting)


def _averages(subject: Subject, inputs: Inputs, where: Where) -> bool:
    """Whether what the guilty operation was given comes straight from a mean or a deviation."""
    if where.op not in ("sub", "__sub__", "sub_", "div", "__truediv__", "add", "__add__", "mul", "__mul__"):
        return False
    operations = subject.operations(inputs)
    flow = Flow(operations)
    places = [k for k, call in enumerate(operations) if (call.name, call.line) == (where.op, where.line)]
    makers = [operations[m].name for k in places for t in read_by(operations[k]) if (m := flow.maker(t, k)) is not None]
    return any(name in ("mean", "std", "var", "sqrt", "norm") for name in makers)


def _numbered(subject: Subject, inputs: Inputs, base: torch.Tensor, counting: frozenset[int]) -> list[Finding]:
    order = torch.arange(len(base)).roll(1)
    with torch.no_grad():
        moved = (subject.run(inputs.rows(order)) - base[order]).abs().amax((1, 2))
    value = float(moved.max()) / (float(base.std()) or 1.0)
    if value <= 1e-3:
        return []
    causes = (("P02", 0.8), ("M15", 0.2)) if 0 in counting else (("M15", 0.6), ("P02", 0.4))
    witness = f"the same row gives other logits at another place in the batch, by {value:.1e}"
    return [finding(causes, witness, value=value, threshold=1e-3, where=_first_numbered(subject, len(base)))]


def _first_numbered(subject: Subject, count: int) -> Where:
    """The first module whose output differs between equal rows."""
    inputs = subject.inputs(1).rows(torch.zeros(count, dtype=torch.long))
    calls = subject.modules_called(inputs)
    axis = 1 if subject.convention.time_first else 0
    for call in calls:
        if call.module is not None and _differs(call.outputs, axis, count) and not _differs(call.inputs, axis, count):
            return place_of_call(call)
    return Where()


def _differs(tensors: list[torch.Tensor], axis: int, count: int) -> bool:
    for tensor in tensors:
        if tensor.dim() > axis + 1 and tensor.shape[axis] == count:
            change = (tensor - tensor.narrow(axis, 0, 1)).abs().max()
            if float(change) > 1e-4 * float(tensor.abs().max()):
                return True
    return False
