"""Where two executions diverge: modules that hold the same weights, call by call in order of execution."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.doctor.comparison.weights import WeightPair, labels
from clearhead.doctor.probes.locations import place_of_call
from clearhead.doctor.probes.tracing import ModuleCall
from clearhead.doctor.report.comparison import Difference, Differing

LEAST = 1e-6  # of the largest number of a tensor: tables computed in float32 may differ by less
FLOORS = 10.0  # a difference counts from this many times what rounding does
SINGLE = 1e-4  # the least difference that counts where float64 cannot be run
HIDDEN = -1e4  # -inf, -1e9 and the smallest number mean the same in a mask
STEPS = 8  # of the growth that are listed
Selection = Callable[[Tensor], Tensor | None]  # the part of a tensor that counts; None if it has none


@dataclass(frozen=True)
class CallPair:
    """One call in each model: by how much their inputs and outputs differ; None where they cannot be compared."""

    a: ModuleCall
    b: ModuleCall
    input_gap: float | None
    output_gap: float | None
    floor: float | None  # what rounding does to the output of A

    @property
    def threshold(self) -> float:
        """The smallest difference that counts."""
        return SINGLE if self.floor is None else max(LEAST, FLOORS * self.floor)

    @property
    def diverges(self) -> bool:
        """Whether the inputs agree and the outputs do not."""
        if self.input_gap is None or self.output_gap is None:
            return False
        return self.input_gap <= self.threshold and not self.agrees and self.output_gap > FLOORS * self.input_gap

    @property
    def agrees(self) -> bool:
        """Whether the outputs agree."""
        return self.output_gap is not None and self.output_gap <= self.threshold


def counterparts(a: nn.Module, b: nn.Module, pairs: Sequence[WeightPair]) -> dict[str, str]:
    """Paths of A's modules, each with that of a module of B with the same weights, of the same name if possible."""
    holds_a, holds_b = (
        {path: frozenset(known[p] for p in module.parameters()) for path, module in model.named_modules()}
        for model, known in zip((a, b), labels(pairs, a, b), strict=True)
    )
    partners = {path: path for path, weights in holds_a.items() if holds_b.get(path) == weights}
    for weights in {weights for path, weights in holds_a.items() if weights and path not in partners}:
        rest_a = [path for path in holds_a if holds_a[path] == weights and path not in partners]
        rest_b = [path for path in holds_b if holds_b[path] == weights and path not in partners]
        partners |= dict(zip(rest_a, rest_b, strict=False))  # the outermost first
    return partners


def paired_calls(
    calls_a: Sequence[ModuleCall],
    calls_b: Sequence[ModuleCall],
    rounded: Sequence[ModuleCall] | None,
    partners: dict[str, str],
    select: Selection,
) -> list[CallPair]:
    """The calls of A with their counterparts in B, in order of execution.

    Args:
        rounded: the calls of A in float32, if the others are in float64.
        partners: paths of A -> of B.
        select: the part of a tensor that counts.
    """
    waiting: dict[str, list[ModuleCall]] = {}
    for call in calls_b:
        waiting.setdefault(call.name, []).append(call)
    pairs = []
    for number, call in enumerate(calls_a):
        others = waiting.get(partners.get(call.name, "\0"))
        if others:
            other = others.pop(0)
            inputs = difference(call.inputs, other.inputs, select)
            outputs = difference(call.outputs, other.outputs, select)
            floor = None if rounded is None else difference(call.outputs, rounded[number].outputs, select) or 0.0
            pairs.append(CallPair(call, other, inputs, outputs, floor))
    return pairs


def difference(a: Sequence[Tensor], b: Sequence[Tensor], select: Selection) -> float | None:
    """The largest of the tensors that can be compared, relative to the largest number; None if none can."""
    if not a and not b:
        return 0.0
    gaps = [_compared(x, y, select) for x, y in zip(a, b, strict=False)]  # one may be given a mask more
    return max((gap for gap in gaps if gap is not None), default=None)


def _compared(x: Tensor, y: Tensor, select: Selection) -> float | None:
    turned = laid_out(y, x.shape)
    if turned is None:  # hidden states of other lengths differ; masks in two forms may mean the same
        hidden = x.is_floating_point() and y.is_floating_point() and x.dim() == y.dim() == 3
        return float("inf") if hidden and x.shape[-1] == y.shape[-1] else None
    chosen, other = select(x), select(turned)
    return None if chosen is None or other is None else _gap(chosen, other)


def laid_out(tensor: Tensor, shape: torch.Size) -> Tensor | None:
    """The tensor with its axes as in `shape`: the same, in another order, or folded; None if that is not clear."""
    if tensor.shape == shape:
        return tensor
    if sorted(tensor.shape) == sorted(shape) and len({*shape}) == len(shape):
        return tensor.permute([tensor.shape.index(size) for size in shape])
    if tensor.numel() == shape.numel() and tensor.shape[-1:] == shape[-1:] and len(shape) != tensor.dim():
        return tensor.reshape(shape)
    return None


def _gap(x: Tensor, y: Tensor) -> float:
    x, y = x.double().clamp(min=HIDDEN), y.double().clamp(min=HIDDEN)
    unequal = (x != y) & ~(x.isnan() & y.isnan())
    if not unequal.any():
        return 0.0
    scale = float(x.nan_to_num(0, 0, 0).abs().max()) or 1.0
    return float((x - y)[unequal].abs().nan_to_num(float("inf"), float("inf")).max()) / scale


def divergence(pairs: Sequence[CallPair], path: str) -> Difference | None:
    """The first module that diverges, unless a module around it has the same output in spite of it."""
    for number, pair in enumerate(pairs):
        if pair.diverges and not any(other.agrees for other in pairs[number + 1 :] if _is_around(other, pair)):
            return _difference(pairs, number, path)
    return None


def _is_around(outer: CallPair, inner: CallPair) -> bool:
    head = f"{outer.a.name}." if outer.a.name else ""
    return outer.a.depth < inner.a.depth and inner.a.name.startswith(head)


def _difference(pairs: Sequence[CallPair], number: int, path: str) -> Difference:
    guilty = pairs[number]
    begin = number
    while begin and pairs[begin - 1].a.depth > guilty.a.depth:
        begin -= 1
    inside = [pair for pair in pairs[begin:number] if pair.a.depth == guilty.a.depth + 1]
    child = next((pair for pair in inside if pair.input_gap is not None and pair.input_gap > pair.threshold), None)
    before = pairs[: number if child is None else pairs.index(child)]
    last = next((pair for pair in reversed(before) if pair.agrees and pair.a.name), None)
    agreed = "" if last is None else Differing(last.a.name, last.b.name, last.output_gap or 0.0).names
    if child is not None:
        names = Differing(child.a.name, child.b.name, child.input_gap or 0.0).names
        agreed += f"{'; then ' if agreed else ''}the input of {names} differs"
    return Difference(
        what="output",
        path=path,
        a=place_of_call(guilty.a, child.a if child else None),
        b=place_of_call(guilty.b, child.b if child else None),
        difference=guilty.output_gap or 0.0,
        threshold=guilty.threshold,
        noise_floor=guilty.floor or 0.0,
        agreed=agreed,
        growth=_growth(pairs[number:]),
    )


def _growth(pairs: Sequence[CallPair]) -> tuple[Differing, ...]:
    """The way to the logits: the layers and the modules beside them, without their parts."""
    outer = [pair for pair in pairs if pair.output_gap is not None and re.fullmatch(r"\D*\d*", pair.a.name)]
    outer = outer[:-1][:: max(1, -(-len(outer) // STEPS))] + outer[-1:]
    return tuple(Differing(pair.a.name or "logits", pair.b.name or "logits", pair.output_gap or 0.0) for pair in outer)
