"""A mask that is laid on a copy of the scores which nobody reads."""

from torch import Tensor

from clearhead.doctor.checks.base import Causes, Finding, Subject, finding, model_check
from clearhead.doctor.probes.flow import Flow, read_by

MASKING = {"masked_fill", "masked_scatter", "index_fill"}  # none of which changes the tensor that it is called on


@model_check("M01", "discarded", order=102, covers=("M03", "M11"), needs=("finite",))
def discarded(subject: Subject) -> list[Finding]:
    """What is masked is read on as it was masked."""
    calls = subject.inside.calls
    flow = Flow(calls)
    for index, call in enumerate(calls):
        if call.name not in MASKING or flow.readers(index) or not (parts := read_by(call)):
            continue
        maker = flow.maker(parts[0], index)
        if maker is None or not any(reader > index for reader in flow.readers(maker)):
            continue
        witness = f"{call.name} returns a masked tensor that nothing reads, and what it was made from is read on"
        is_triangle = len(parts) > 1 and _is_triangle(parts[1])
        causes: Causes = (("M01", 0.8), ("M03", 0.2)) if is_triangle else (("M11", 0.8), ("M01", 0.2))
        return [finding(causes, witness, where=subject.place_of(call))]
    return []


def _is_triangle(mask: Tensor) -> bool:
    """Whether a mask (..., T, T) hides a triangle."""
    return mask.dim() > 1 and bool(mask.bool().triu(1).any()) and not bool(mask.bool().tril(-1).any())
