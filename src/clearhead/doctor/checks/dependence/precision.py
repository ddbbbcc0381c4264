"""In bfloat16 rounding spreads evenly over a row: an error that grows along it comes from the positions."""

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs, Run
from clearhead.doctor.checks.base import SOUND, Finding, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.probes.tensors import first_true
from clearhead.doctor.state_guard import twin

LENGTHS = (512, 384, 256, 128, 64, 48, 32)
ROUNDING = 2**-8  # of bfloat16
BOUND = 8.0  # times rounding and the root of the depth
GROWTH = 3.0  # times the first quarter of the row
STEADY = 0.8  # of the quarter before: from one to the next it must not shrink
LARGEST = 50_000_000  # parameters


@model_check("R03", "precision", order=350, covers=("M09",), needs=SOUND, level="deep", of_tokens=True)
def precision(subject: Subject) -> list[Finding]:
    """In bfloat16 the logits are finite, and no worse at the end of a long row than at its beginning."""
    if sum(parameter.numel() for parameter in subject.model.parameters()) > LARGEST:
        raise Skipped("it has too many parameters for another copy")
    how, run = _rounded(subject)
    for T in LENGTHS:
        inputs = subject.inputs(2, salt=51, T=T)
        with attempt() as attempted:
            exact = subject.run(inputs)
        if attempted.failed:  # too long for it
            continue
        subject.journal.paths.append(f"bfloat16 ({how}), rows of {T} tokens")
        return _judge(subject, exact, run(inputs).float())
    raise Skipped("it takes no row of 32 tokens or more")


def _rounded(subject: Subject) -> tuple[str, Run]:
    """The first use of bfloat16 that works: for the weights, as checkpoints load; for buffers as well; autocast."""
    weights, whole = twin(subject.model), twin(subject.model).bfloat16()
    for parameter in weights.parameters():
        if parameter.dtype == torch.float32:
            parameter.data = parameter.data.bfloat16()

    def run(inputs: Inputs, model: nn.Module = subject.model, autocast: bool = False) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return subject.run(inputs, model=model)

    variants: dict[str, Run] = {
        "the weights": partial(run, model=weights),
        "weights and buffers": partial(run, model=whole),
        "autocast": partial(run, autocast=True),
    }
    for how, variant in variants.items():
        with attempt():  # some operations lack bfloat16
            variant(subject.inputs(2))
            return how, variant
    raise Skipped("it does not run in bfloat16")


def _judge(subject: Subject, exact: Tensor, rounded: Tensor) -> list[Finding]:
    if exact.isfinite().all() and not rounded.isfinite().all():
        row, position, _ = first_true(~rounded.isfinite())
        witness = f"logits {position} of row {row} are finite in float32 but not in bfloat16"
        return [finding("M09", witness)]
    off = (rounded - exact).pow(2).mean((0, 2)).sqrt() / (float(exact.std()) or 1.0)  # (T,)
    quarter = max(1, len(off) // 4)
    parts = [float(off[quarter * n : quarter * (n + 1)].mean()) for n in range(4)]
    depth = sum(isinstance(module, nn.ModuleList) and len(module) for module in subject.model.modules()) or 1
    grows = all(later > STEADY * earlier for earlier, later in pairwise(parts))
    if not grows or parts[-1] < GROWTH * parts[0] or parts[-1] < BOUND * ROUNDING * depth**0.5:
        return []
    change = f"{parts[0]:.1e} of their spread at the start of a row, and by {parts[-1]:.1e} at its end"
    witness = f"bfloat16 moves logits by {change}"
    return [finding("R03", witness, value=parts[-1], threshold=GROWTH * parts[0])]
