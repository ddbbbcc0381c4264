"""What must hold before anything else can be judged: finite numbers, repeatable logits, independent rows."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import (
    STEADY,
    Causes,
    Finding,
    Skipped,
    Status,
    Subject,
    Where,
    attempt,
    finding,
    model_check,
)
from clearhead.doctor.checks.own_batch import finite_on_own_batch
from clearhead.doctor.probes.attention import attentions
from clearhead.doctor.probes.dependency import THRESHOLD
from clearhead.doctor.probes.flow import Flow, read_by
from clearhead.doctor.probes.localization import Located, first_unlike, locate, row_reading
from clearhead.doctor.probes.locations import place_of_call
from clearhead.doctor.probes.norms import is_norm
from clearhead.doctor.probes.products import NORMS
from clearhead.doctor.probes.tensors import are_same, change_of, first_true, relative_change
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules, without_dropout
from clearhead.doctor.problems import message_of

ROW_FAULTS = ("A10", "P02", "N02", "M15", "V01", "F05")
ROWS, FEW_ROWS = 5, 3  # of a batch; fewer for a large model in a hurry
MOVED, RENUMBERED = 1e-4, 1e-3  # of the logits' spread: by another row's tokens, and by another row number
DRAWS = {"rand", "randn", "rand_like", "randn_like", "randint", "randperm", "bernoulli", "normal", "multinomial"} | {
    "bernoulli_", "normal_", "uniform_", "exponential_", "random_"
}  # fmt: skip
SORTS = {"argsort", "sort", "topk"}
CHOICES = SORTS | {"argmax", "kthvalue"}
STATISTICS = {"mean", "std", "var", "sqrt", "norm", "sum", "max", "min", "amax", "amin"}
RECURRENCES = {"gru", "lstm", "rnn_tanh", "rnn_relu"}
TAKES = {"__getitem__", "select", "index_select", "narrow", "masked_fill", "masked_fill_", "where", "repeat", "expand"}


@model_check("M14", "finite", order=10, covers=("M07", "M05", "M04", "A03", "R01"))
def finite(subject: Subject) -> list[Finding]:
    """Every logit is a finite number."""
    inputs = subject.inputs(3)
    with recorded_modules(subject.fresh) as calls:
        logits = subject.run(inputs, model=subject.fresh)
    bad = ~logits.isfinite()
    if not bad.any():
        return finite_on_own_batch(subject)
    is_nan = bool(logits.isnan().any())
    row, position, _ = first_true(bad)
    witness = f"logits {position} of row {row} are {'NaN' if is_nan else 'infinite'} for ordinary tokens"
    causes = _empty_rows(subject, inputs) if is_nan else (("R01", 0.8), ("M14", 0.2))
    status: Status = "fail" if is_nan else "warn"  # tokens may be ruled out by a probability of zero
    return [finding(causes, witness, value=float(bad.float().mean()), where=first_nan(calls), status=status)]


def first_nan(calls: Sequence[ModuleCall]) -> Where:
    """The first module that makes NaN from numbers. Infinities do not count: masks may hold them."""
    return place_of_call(next((call for call in calls if _has_nan(call.outputs) and not _has_nan(call.inputs)), None))


def _has_nan(tensors: Sequence[Tensor]) -> bool:
    return any(bool(tensor.isnan().any()) for tensor in tensors)


def _empty_rows(subject: Subject, inputs: Inputs) -> Causes:
    """Which mask leaves a query without any key."""
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


@model_check("A08", "deterministic", order=30, covers=("V01", "T09", "T08", "I05", "K06"), needs=("finite",))
def deterministic(subject: Subject) -> list[Finding]:
    """The same batch gives the same logits twice in eval(), to the last bit."""
    inputs, (first, second, drawn) = subject.inputs(3), subject.repeated
    if subject.repeated.is_same:
        return []
    change = float((first - second).abs().max())
    if subject.device.type != "cpu" and change <= THRESHOLD * float(first.abs().max()):
        return []  # an accelerator adds in any order: later checks measure this rounding as their noise floor
    with torch.no_grad(), without_dropout() as dropping:
        subject.convention.logits(subject.model, inputs)
    witness = f"running the same batch twice in eval() moves logits by {change:.1e}"
    if subject.drops_in_evaluation:
        call, switched = dropping.dropouts[0], _switched(subject)
        same = (
            op for op in subject.operations(inputs) if (op.name, op.file, op.line) == (call.name, call.file, call.line)
        )
        where = subject.place_of(next(same, call))
        if switched:
            message = f"{witness}: the call puts {switched} into training mode"
            return [finding((("V01", 0.8), ("A08", 0.2)), message, value=change, where=where)]
        message = f"{witness}; {call.name} ran with p={call.options['p']:g}"
        return [finding((("A08", 0.8), ("I05", 0.2)), message, value=change, where=where)]
    passes = [subject.modules_called(inputs) for _ in range(2)]
    where = place_of_call(first_unlike(*passes))
    causes = (("T09", 0.8), ("A08", 0.2)) if drawn else (("T08", 0.8), ("K06", 0.1), ("T09", 0.1))
    is_read = any(not are_same(a.inputs, b.inputs) for a, b in zip(*passes, strict=False))  # else it may be a sample
    if drawn and not dropping.dropouts and ("torch" not in drawn or _only_orders(subject)):  # as patches to be hidden
        what = "only draws a random order" if "torch" in drawn else f"draws from {' and '.join(sorted(drawn))}"
        witness, is_read = f"{witness}; the model {what}, which may be intended", False
    read = "its own parts, which read what is random" if is_read else ""
    return [finding(causes, witness, value=change, where=where, second=read)]


def _only_orders(subject: Subject) -> bool:
    """Whether all random numbers are sorted, and used for nothing else."""
    operations = subject.operations(subject.inputs(3))
    flow = Flow(operations)
    drawn = [index for index, call in enumerate(operations) if call.name in DRAWS]
    return bool(drawn) and all(
        operations[index].name == "randperm" or {operations[reader].name for reader in flow.readers(index)} <= SORTS
        for index in drawn
    )


def _switched(subject: Subject) -> str | None:
    """A module that is in evaluation mode before a call and in training mode after it."""
    before = [(module, module.training) for module in subject.model.modules()]
    subject.model.eval()
    subject.run(subject.inputs(1))
    switched = next((name for name, module in subject.model.named_modules() if module.training), None)
    for module, training in before:
        module.training = training
    return switched


@model_check("A10", "rows", order=60, covers=ROW_FAULTS, needs=(*STEADY, "memory", "layouts"))
def rows(subject: Subject) -> list[Finding]:
    """A row's logits depend neither on the other rows of the batch nor on its own row number."""
    if subject.convention.at_once == 1:
        raise Skipped("it takes one row at a time")
    try:
        _ = subject.matrix  # of T + 1 rows
    except (RuntimeError, IndexError) as error:
        message = message_of(error, 100)
        raise Skipped(f"it does not take {subject.calling.T + 1} rows at once ({message})") from None
    count = FEW_ROWS if subject.is_hurried else ROWS
    inputs = subject.inputs(count, salt=3)
    if mixed := _first_mixed(subject, inputs):
        others = subject.inputs(count + 2, salt=3)  # a mask for tokens may be laid over as many rows
        with attempt() as attempted:
            if subject.convention.at_once:
                return [_mixed(subject, inputs, *mixed, second="")]
            if _first_mixed(subject, others):
                return [_mixed(subject, inputs, *mixed, second=f"a batch of {count + 2} rows, which meet as well")]
        what = "it does not run" if attempted.failed else "no row moves another"
        raise Skipped(f"rows meet in a batch of {count}, but with {count + 2} rows {what}")
    return _mixed_by_special_tokens(subject, inputs) or (
        [] if subject.is_seeded else _numbered(subject, inputs, subject.run(inputs))
    )


def _mixed_by_special_tokens(subject: Subject, inputs: Inputs) -> list[Finding]:
    """Special tokens of its config, which may part a row, at other places in each row but the first."""
    V, is_known = subject.calling.vocab_size, subject.convention.reads_words("ids")
    named = {n: t for n, t in subject.settings.items() if n.endswith("_token_id") and isinstance(t, int)}
    special = sorted({t for t in named.values() if is_known and 0 <= t < V and t != subject.pad_id})
    if not special:
        return []
    ids, T = inputs.ids.clone(), inputs.ids.shape[1]
    for row in range(1, len(ids)):
        for number, token in enumerate(special):
            ids[row, [(2 * row + 3 * number) % T, (2 * row + 3 * number + T // 2) % T]] = token
    with attempt() as attempted:  # it may want as many of them in each row
        value = change_of(*(subject.run(batch)[0] for batch in (inputs, replace(inputs, ids=ids))))
    if attempted.failed or not value > MOVED:
        return []
    witness = f"special tokens in other rows, {special} of its config, move the logits of row 0 by {value:.1e}"
    return [finding((("M15", 0.7), ("A10", 0.3)), witness, value=value, threshold=MOVED, where=subject.attention_place)]


def _first_mixed(subject: Subject, inputs: Inputs) -> tuple[Inputs, int, Tensor] | None:
    """The first row whose tokens move other rows' logits: the batch with others in it, its number, and how far (B)."""
    count = len(inputs.ids)
    base, other = subject.run(inputs), subject.inputs(count, salt=4)
    for row in range(count):
        is_changed = torch.arange(count) == row
        changed = inputs
        for source in (False, True) if subject.convention.has_source else (False,):
            tokens = torch.where(is_changed[:, None], other.tokens(source), inputs.tokens(source))
            changed = changed.with_tokens(source, tokens)
        moved = (subject.run(changed) - base).abs().amax((1, 2)) / (float(base.std()) or 1.0)  # (B,)
        moved[row] = 0
        if float(moved.max()) > MOVED:
            return changed, row, moved
    return None


def _mixed(subject: Subject, inputs: Inputs, changed: Inputs, row: int, moved: Tensor, *, second: str) -> Finding:
    others = torch.arange(len(moved)) != row
    reading = row_reading(len(moved))
    leak = locate(subject.model, subject.run, inputs, changed, reading, lambda alive: bool(alive[others].any()))
    where, makers = leak.where, _makers(leak)
    causes: Causes = (("A10", 0.4), ("M15", 0.3), ("N02", 0.3))
    sizes = {attention.allowed.shape for attention in attentions(leak.operations)}
    status: Status = "fail"
    if where.op in RECURRENCES or (len(moved), len(moved)) in sizes:
        causes = (("A10", 0.9), ("N02", 0.1))
        status = "warn" if len(sizes) > 1 and subject.convention.reads_numbers else "fail"  # rows of a table may meet
    elif leak.call is not None and leak.call.module is not None and leak.call.module.training:
        causes = (("V01", 0.8), ("N02", 0.2))
    elif leak.call is not None and _chooses(leak, leak.call.module):
        causes = (("F05", 0.8), ("A10", 0.2))
    elif (leak.call is not None and is_norm(leak.call.module)) or {where.op, *makers} & (NORMS | STATISTICS):
        causes = (("N02", 0.8), ("A10", 0.2))
    elif {where.op, *makers} & TAKES:
        causes = (("M15", 0.6), ("A10", 0.2), ("N02", 0.2))
    value = float(moved.max())
    witness = f"changing the tokens of row {row} moves the logits of row {int(moved.argmax())} by {value:.1e}"
    return finding(causes, witness, value=value, threshold=MOVED, where=where, status=status, second=second)


def _chooses(leak: Located, module: nn.Module | None) -> bool:
    """Whether something within a module chooses among what it reads, as experts with a capacity do."""
    inside = set() if module is None else {id(part) for part in module.modules()}
    return any(call.name in CHOICES and id(call.module) in inside for call in leak.operations)


def _makers(leak: Located) -> set[str]:
    """The operations that made what the guilty one reads."""
    if leak.op is None:
        return set()
    flow = Flow(leak.operations)
    makers = (flow.maker(tensor, leak.op) for tensor in read_by(flow.calls[leak.op]))
    return {flow.calls[at].name for at in makers if at is not None}


def _numbered(subject: Subject, inputs: Inputs, base: Tensor) -> list[Finding]:
    order = torch.arange(len(base)).roll(1)
    moved = (subject.run(inputs.rows(order)) - base[order]).abs().amax((1, 2))
    value = float(moved.max()) / (float(base.std()) or 1.0)
    if not value > RENUMBERED:  # or not finite, which is another check's
        return []
    counts_rows = 0 in subject.calling.axes.counting
    causes = (("P02", 0.8), ("M15", 0.2)) if counts_rows else (("M15", 0.6), ("P02", 0.4))
    witness = f"the same row has other logits at another index of the batch, by {value:.1e}"
    equal = subject.modules_called(subject.inputs(1).rows(torch.zeros(len(base), dtype=torch.long)))
    axis = 1 if subject.convention.time_first else 0
    guilty = (
        c for c in equal if _rows_differ(c.outputs, axis, len(base)) and not _rows_differ(c.inputs, axis, len(base))
    )
    return [finding(causes, witness, value=value, threshold=RENUMBERED, where=place_of_call(next(guilty, None)))]


def _rows_differ(tensors: Sequence[Tensor], axis: int, count: int) -> bool:
    """Whether a tensor holds unlike rows, though all rows of the batch are equal."""
    batches = (tensor for tensor in tensors if tensor.dim() > axis + 1 and tensor.shape[axis] == count)
    return any(relative_change(tensor, tensor.narrow(axis, 0, 1)) > 1e-4 for tensor in batches)
