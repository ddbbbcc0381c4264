"""A mask that hides nothing: laid on a copy of the scores which nobody reads, or with a number as large as they are."""

from collections.abc import Iterator

from torch import Tensor

from clearhead.doctor.checks.base import Causes, Finding, Subject, finding, model_check
from clearhead.doctor.probes.flow import MULTIPLY, read_by
from clearhead.doctor.probes.tracing import ModuleCall

MASKING = {"masked_fill", "masked_scatter", "index_fill"}  # none of which changes the tensor that it is called on
FILLING = {"masked_fill", "masked_fill_"}
NO_LOWER = -1.0  # a score: before a softmax this and more are as good as any, and 1e-9 is what -1e9 was to be


@model_check("M01", "discarded", order=102, covers=("M03", "M11", "S01"), needs=("finite",))
def discarded(subject: Subject) -> list[Finding]:
    """What is masked is read on as it was masked, and hidden."""
    for call, witness in (*_unread(subject), *_no_lower(subject)):
        parts = read_by(call)
        is_triangle = len(parts) > 1 and _is_triangle(parts[1])
        causes: Causes = (("M01", 0.8), ("M03", 0.2)) if is_triangle else (("M11", 0.7), ("M01", 0.2), ("S01", 0.1))
        return [finding(causes, witness, where=subject.place_of(call))]
    return []


def _unread(subject: Subject) -> Iterator[tuple[ModuleCall, str]]:
    """Masks that go nowhere, in words."""
    flow = subject.inside.flow
    for index, call in enumerate(flow.calls):
        if call.name not in MASKING or flow.readers(index) or not (parts := read_by(call)):
            continue
        maker = flow.maker(parts[0], index)
        if maker is not None and any(reader > index for reader in flow.readers(maker)):
            yield call, f"{call.name} returns a masked tensor that nothing reads, and what it was made from is read on"


def _no_lower(subject: Subject) -> Iterator[tuple[ModuleCall, str]]:
    """Masks that give what they hide a score like any other; not where the weights themselves are masked as well."""
    flow = subject.inside.flow
    for index, call in enumerate(flow.calls):
        value = call.argument(2, "value") if call.name in FILLING else None
        number = (
            float(value) if isinstance(value, int | float) or (isinstance(value, Tensor) and value.dim() == 0) else None
        )
        softmax = next((at for at in flow.readers(index) if flow.calls[at].name == "softmax"), None)
        if number is None or not number > NO_LOWER or softmax is None or _fills_whole_rows(call):
            continue
        if not any(flow.calls[reader].name in FILLING | MULTIPLY for reader in flow.readers(softmax)):
            yield (
                call,
                f"{call.name} gives what it hides the score {number:g}, which the softmax after it does not hide",
            )


def _fills_whole_rows(call: ModuleCall) -> bool:
    """Whether a mask says the same of all the scores of a query, as where none is left to be looked at."""
    scores, mask = read_by(call)[:2]
    return mask.dim() > 1 and mask.shape[-1] == 1 < scores.shape[-1]


def _is_triangle(mask: Tensor) -> bool:
    """Whether a mask (..., T, T) hides a triangle."""
    return mask.dim() > 1 and bool(mask.bool().triu(1).any()) and not bool(mask.bool().tril(-1).any())
