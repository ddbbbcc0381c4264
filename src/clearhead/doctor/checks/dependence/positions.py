"""Whether the order of tokens matters, and whether rotary positions measure distance."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import POSITION_TABLE
from clearhead.doctor.checks.base import SOUND, Causes, Finding, Skipped, Subject, Where, finding, model_check
from clearhead.doctor.checks.parts.effects import SAME, effect, moves, with_options
from clearhead.doctor.probes.attention import AttentionCall, attentions
from clearhead.doctor.probes.localization import first_guilty, locate, token_reading, trace_modules
from clearhead.doctor.probes.locations import owner_of, place_of_call
from clearhead.doctor.probes.tensors import axis_of, is_same, relative_change
from clearhead.doctor.probes.tracing import ModuleCall

TABLE = "that it holds positions"
ROTATION = "what a rotation is for: that scores depend on distances"
UNEVEN = 1e-3  # of the scores' spread
ROUNDED = 0.05  # of the scores' spread: a rotation that is off by less was rounded, not mistaken


@model_check("P01", "positions", order=180, covers=("P05", "P06", "P08", "S07"), needs=(*SOUND, "sources"))
def positions(subject: Subject) -> list[Finding]:
    """The order of the tokens matters, and rotary scores depend on the distance alone."""
    findings = _without_order(subject, source=True) if subject.convention.has_source else []
    if not findings:
        findings = _order_at_first_mixing(subject) if subject.looks_back_only else _without_order(subject, source=False)
    tables = [tensor for name, tensor in _tables(subject) if tensor.is_floating_point()]
    if findings and tables and effect(subject, tables, of=with_options) > SAME:
        raise Skipped("a switch of `forward` gives it positions, and it is off")
    return findings


def _exchanged(ids: Tensor, first: list[int], second: list[int]) -> Tensor:
    order = torch.arange(ids.shape[1])
    order[first], order[second] = torch.tensor(second), torch.tensor(first)
    return ids[:, order]


def _without_order(subject: Subject, *, source: bool) -> list[Finding]:
    """Two tokens of the source change places, and no logit moves; or two of the ids, and only their logits do so."""
    role, i, j = ("source", 0, subject.calling.S - 2) if source else ("ids", 1, subject.calling.T - 2)
    if i >= j:
        raise Skipped("rows are too short to swap two tokens")
    # a patch of a picture may be as large as a quarter of it: 4 of 16 parts
    swapped = ([0, 1, 4, 5], [10, 11, 14, 15]) if subject.convention.reads_pictures else ([i], [j])
    inputs = subject.inputs(2, salt=7)
    tokens, before = inputs.tokens(source), subject.run(inputs)
    after = subject.run(inputs.with_tokens(source, _exchanged(tokens, *swapped)))
    value = relative_change(before, after if source else _exchanged(after, *swapped))
    alike = tokens.clone()
    alike[:, swapped[0]] = alike[:, swapped[1]]
    if value > SAME or relative_change(before, subject.run(inputs.with_tokens(source, alike))) <= SAME:
        return []  # or neither is read
    idle, causes = _idle_table(subject), (("S07", 0.9), ("P01", 0.1)) if source else (("P01", 1.0),)
    where = idle
    # numbers may be a set, or come with their positions
    reads_words = subject.convention.reads_words(role)
    tables = _tables(subject) if reads_words or not source else []
    against = TABLE if tables else "that each token has logits of its own" if source and reads_words else ""
    witness = f"swapping tokens {i} and {j} swaps their logits and moves no others: order does not matter"
    if source:
        witness, reading = f"swapping tokens {i} and {j} of the source moves no logit", token_reading(subject.calling.S)
        where = where or locate(subject.model, subject.run, *subject.swapped(source=True), reading, _meet).where
    second = _what_tables_do(tables, idle)
    return [finding(causes, witness, value=value, threshold=SAME, where=where, against=against, second=second)]


def _meet(alive: Tensor) -> bool:
    """Whether a token influences the position of another."""
    return bool((alive & ~torch.eye(len(alive), dtype=torch.bool)).any())


def _order_at_first_mixing(subject: Subject) -> list[Finding]:
    """The first module in which tokens meet is judged: a deep causal model knows the order even without positions."""
    n = subject.calling.T
    base, changed = subject.swapped()
    first, moved = trace_modules(subject.model, subject.run, base, changed)
    call = first_guilty(first, moved, token_reading(n), _meet)
    if call is None or n < 4:
        raise Skipped("no module in which tokens meet was found" if call is None else "its rows are too short")
    number = next(k for k, other in enumerate(moved) if other is call)
    second = subject.modules_called(replace(base, ids=_exchanged(base.ids, [n - 3], [n - 2])))
    if number >= len(first) or not first[number].outputs:
        return []
    before, after = (_last(calls[number], n) for calls in (first, second))
    if before is None or after is None:
        return []
    value = relative_change(before, after)
    rotation = _rotation(subject, call)
    if value > SAME or rotation:
        return rotation
    alike = base.ids.clone()
    alike[:, n - 3] = alike[:, n - 2]
    is_seen = not is_same(before, _last(subject.modules_called(replace(base, ids=alike))[number], n))
    if not is_seen or _is_known_before(first[number], second[number], n) or _is_known_later(subject):
        return []
    tables, name = _tables(subject), call.name or type(call.module).__name__
    idle = _idle_table(subject)
    where = idle or place_of_call(call)
    witness = f"swapping tokens {n - 3} and {n - 2} does not change the output of {name} for the last token"
    witness += f"; {tables[0][0]} exists, but no attention uses it" if tables else ""
    against, also = TABLE if tables else "", _what_tables_do(tables, idle)
    return [finding("P01", witness, value=value, threshold=SAME, where=where, against=against, second=also)]


def _is_known_before(call: ModuleCall, exchanged: ModuleCall, n: int) -> bool:
    """Whether exchanging tokens n - 3 and n - 2 gives a module other vectors, and not just the same two exchanged.

    Attention may then look at only one of the two, and move nothing.
    """
    for before, after in zip(call.inputs, exchanged.inputs, strict=False):
        axis = axis_of(before, n)
        if before.shape != after.shape or axis is None or before.dim() != 3 or torch.equal(before, after):
            continue  # not tokens: perhaps a table of positions
        order = torch.tensor([*range(n - 3), n - 2, n - 3, n - 1]).to(after.device)
        if relative_change(before, after.index_select(axis, order)) > SAME:
            return True
    return False


def _equal_tokens(subject: Subject) -> Inputs:
    inputs = subject.inputs(2)
    return Inputs(torch.full_like(inputs.ids, int(inputs.ids[0, 0])), inputs.source)


def _is_known_later(subject: Subject) -> bool:
    """Whether scores of equal tokens differ in any attention: some models give positions to some layers only."""
    for attention in _self_attentions(subject, _equal_tokens(subject)):
        assert attention.scores is not None
        scores = attention.scores[:, _is_visible(attention.scores)]
        if float((scores - scores[:, :1]).abs().max()) > SAME * float(scores.abs().max()):
            return True
    return False


def _self_attentions(subject: Subject, inputs: Inputs, model: nn.Module | None = None) -> list[AttentionCall]:
    """Those among the tokens of one row whose scores are known; of the perturbed copy or of another."""
    shape = (subject.calling.T, subject.calling.T)
    maps = attentions(subject.operations(inputs, model=model))
    return [attention for attention in maps if attention.allowed.shape == shape and attention.scores is not None]


def _is_visible(scores: Tensor) -> Tensor:
    """(T, T), True where a token looks back at what no mask hides, for scores (N, T, T)."""
    return torch.ones(scores.shape[1:], dtype=torch.bool).tril() & (scores > -1e4).all(0)


def _tables(subject: Subject) -> list[tuple[str, Tensor]]:
    """Parameters and buffers that are named after positions; no maps, which make them of what is given.

    Nor tables of fewer rows than there are numbers in a row: they may place what these are parts of.
    """
    reads_rows = subject.convention.reads_numbers and not subject.convention.reads_pictures
    needed = subject.calling.T if reads_rows else 1
    return [
        (name, tensor)
        for name, tensor in (*subject.model.named_parameters(), *subject.model.named_buffers())
        if POSITION_TABLE.search(name)
        and max(tensor.shape[:-1], default=1) >= needed
        and not isinstance(subject.model.get_submodule(name.rpartition(".")[0]), nn.Linear)
    ]


def _what_tables_do(tables: list[tuple[str, Tensor]], idle: Where | None) -> str:
    """What else was seen where the order has no effect: that a table has none, or tells no two places apart."""
    if not tables:
        return ""
    return f"a table in {idle.module}, which moves no logit" if idle else f"{tables[0][0]}, which tells no places apart"


def _idle_table(subject: Subject) -> Where | None:
    """The owner of a table of positions that moves no logit."""
    tables = ((name, tensor) for name, tensor in _tables(subject) if tensor.is_floating_point())
    name = next((name for name, tensor in tables if not moves(subject, [tensor])), None)
    return None if name is None else owner_of(subject.model, name)


def _last(call: ModuleCall, n: int) -> Tensor | None:
    axis = axis_of(call.outputs[0], n)
    return None if axis is None else call.outputs[0].select(axis, n - 1)


def _rotation(subject: Subject, call: ModuleCall) -> list[Finding]:
    """With equal tokens everywhere, a score depends on the distance only, unless positions were added to the tokens."""
    equal, n = _equal_tokens(subject), subject.calling.T
    if not _is_even_before(subject, equal, call):
        return []
    first = next(iter(_self_attentions(subject, equal)), None)
    if first is None or first.scores is None or not _is_same_place(subject, first.call, call):
        return []
    scores = first.scores.double()  # (N, T, T)
    visible = _is_visible(scores)
    spread = float(scores[:, visible].std())
    worst, (distance, index) = _unevenness(scores, visible)
    if spread < 1e-6 * max(1.0, float(scores[:, visible].abs().max())) or worst < UNEVEN * spread:
        return _turned_values(subject, first, call)
    turned = {_turns(first.query, n), _turns(first.key, n)}
    if turned == {False}:
        return []  # not rotary: a bias on the scores may depend on the position itself
    own = scores.diagonal(0, 1, 2)[:, :, None]
    # a softmax ignores what is added to a whole row; a factor is a temperature for each position
    if any(_is_of_distance(row, visible, UNEVEN * spread) for row in (scores - own, scores / own * spread)):
        return []
    witness = (
        f"equal tokens at distance {distance} have other scores at position {distance} than at {index + distance}, "
        f"by {worst / spread:.1e} of the scores' spread"
    )
    one_sided = len(turned) == 2  # queries or keys, and not both
    causes: Causes = (("P06", 0.8), ("P05", 0.2)) if one_sided else (("P05", 0.7), ("P06", 0.3))
    if worst / spread < ROUNDED:
        causes = (("P08", 0.7), ("P05", 0.2), ("P06", 0.1))
    value, where = worst / spread, place_of_call(call)
    fresh = next(iter(_self_attentions(subject, equal, subject.fresh)), first).scores
    second = ""  # a gain for each channel behind the rotation begins with ones
    if fresh is not None and _unevenness(fresh.double(), visible)[0] >= UNEVEN * float(fresh[:, visible].std()):
        second = "a fresh model, whose scores do the same"
    return [finding(causes, witness, value=value, threshold=UNEVEN, where=where, against=ROTATION, second=second)]


def _unevenness(scores: Tensor, visible: Tensor) -> tuple[float, tuple[int, int]]:
    """The most by which scores (N, T, T) at one distance differ, that distance, and the index along it."""
    worst, at = 0.0, (0, 0)
    for distance in range(1, len(visible) - 2):
        line = scores.diagonal(-distance, 1, 2)[:, visible.diagonal(-distance)]  # (N, n - distance)
        if line.shape[1] > 1 and float((line - line[:, :1]).abs().max()) > worst:
            worst = float((line - line[:, :1]).abs().max())
            at = (distance, int((line - line[:, :1]).abs().amax(0).argmax()))
    return worst, at


def _is_of_distance(scores: Tensor, visible: Tensor, least: float) -> bool:
    """Whether scores (N, T, T) vary by more than `least`, and only with the distance."""
    spread = float(scores[:, visible].std())
    return spread > least and _unevenness(scores, visible)[0] < UNEVEN * spread


def _turns(tensor: Tensor | None, n: int) -> bool:
    """Whether the vectors of equal tokens point elsewhere at other positions; a longer vector is not turned."""
    axis = axis_of(tensor, n)
    if tensor is None or axis is None:
        return True
    lines = tensor.detach().double().movedim(axis, 0)  # (T, ..., K)
    return bool((F.cosine_similarity(lines, lines[:1].expand_as(lines), dim=-1) < 1 - SAME).any())


def _is_same_place(subject: Subject, attention: ModuleCall, mixing: ModuleCall) -> bool:
    """Whether tokens first meet in this attention, and not in a convolution or a recurrence before it."""
    name = next((name for name, module in subject.model.named_modules() if module is attention.module), "")
    return f"{name}.".startswith(f"{mixing.name}.") or not name or not mixing.name


def _turned_values(subject: Subject, first: AttentionCall, call: ModuleCall) -> list[Finding]:
    """Equal tokens have equal values at every position; values that differ but are equally long have been rotated."""
    value, n = first.value, subject.calling.T
    axis = axis_of(value, n)
    if value is None or axis is None or value.dim() < 3:
        return []
    lines = value.detach().movedim(axis, 0)  # (T, ..., K)
    lengths = lines.flatten(1).norm(dim=-1)
    off = float((lines - lines[-1:])[n // 2 : -1].abs().max()) / (float(lines.abs().max()) or 1.0)
    if off < 1e-3 or float((lengths - lengths[-1])[n // 2 :].abs().max()) > 1e-3 * float(lengths[-1]):
        return []
    witness = f"values of equal tokens differ between positions by {off:.1e}, but are equally long: they are rotated"
    return [
        finding(
            (("P06", 0.9), ("P05", 0.1)),
            witness,
            value=off,
            threshold=1e-3,
            where=place_of_call(call),
            against=ROTATION,
        )
    ]


def _is_even_before(subject: Subject, equal: Inputs, call: ModuleCall) -> bool:
    """Whether the first mixing module reads the same vector at every position."""
    n = subject.calling.T
    inputs = next((other.inputs for other in subject.modules_called(equal) if other.name == call.name), [])
    hidden = next((t for t in inputs if t.dim() == 3 and n in t.shape), None)
    return hidden is not None and relative_change(hidden, hidden.narrow(list(hidden.shape).index(n), 0, 1)) <= SAME
