"""Whether a view or a reshape keeps tokens together, by sending the tokens' own numbers through it."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import filler_of
from clearhead.doctor.calling.numbers import is_picture
from clearhead.doctor.checks.base import Causes, Finding, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.checks.parts.heads import parted_tokens
from clearhead.doctor.probes.attention import AttentionCall, attentions
from clearhead.doctor.probes.products import LINEAR
from clearhead.doctor.probes.tracing import ModuleCall, recorded_ops

ROWS = (5, 11, 19)  # the last is a size that no other axis is likely to have
MOVES = {"view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "_unsafe_view"}


@model_check("A05", "layouts", order=50, covers=("A04", "A10"), needs=("finite",))
def layouts(subject: Subject) -> list[Finding]:
    """No view or reshape moves numbers from one token or row to another."""
    with attempt() as attempted:
        tensors = (tensor for call in subject.inside.calls for tensor in (*call.inputs, *call.outputs))
        sizes = {size for tensor in tensors for size in tensor.shape}
        rows = next((rows for rows in ROWS if not {rows, *distances(rows)} & sizes), ROWS[-1])
        operations = subject.operations(subject.inputs(1).rows(torch.zeros(rows, dtype=torch.long)))
    if attempted.failed:
        raise Skipped(f"its operations cannot be watched ({attempted.kind})")
    maps = list(attentions(operations))
    axes = {size: "token" for attention in maps for size in attention.allowed.shape if size > 2}  # patches are tokens
    axes |= {subject.calling.T: "token", rows: "row"}
    axes |= {subject.calling.S: "token"} if subject.convention.has_source else {}
    for call in filter(_lays_in_a_row, operations):
        axes.setdefault(_in_a_row(call).shape[-1], "patch")
    T = subject.calling.T
    spots = ((scrambled(operations, size, beside={T} - {size}), noun) for size, noun in axes.items())
    scrambles = [(spot, noun) for spot, noun in spots if spot is not None]
    if not scrambles and (apart := parted_tokens(subject) or _torn_patches(subject)) is not None:
        return [apart]
    if not scrambles and not any(are_judged(operations, size) for size in axes):
        raise Skipped("no view or reshape of its tokens can be followed")
    if not scrambles:
        return []
    spot, noun = min(scrambles, key=lambda scramble: scramble[0].index)
    witness = f"after '{spot.call.name}', {noun} {spot.position} holds numbers of {noun} {spot.token}"
    before, after = (sorted(tensor.shape) for tensor in (spot.call.inputs[0], spot.call.outputs[0]))
    # read with its first two axes exchanged, whole rows are mixed; heads would make an axis more
    is_of_rows = before == after and any(noun == "row" and other.index == spot.index for other, noun in scrambles)
    causes = (("A10", 0.8), ("A04", 0.2)) if is_of_rows else reshape_causes(spot.index, maps)
    return [finding(causes, witness, where=subject.place_of(spot.call))]


def _torn_patches(subject: Subject) -> Finding | None:
    """A token made of a picture's numbers alone, as the first linear map reads it, whose pixels do not lie together."""
    name, filler = next(((n, f) for n, f in subject.convention.call if is_picture(f)), ("", ""))
    inputs = subject.inputs(1)
    picture = filler_of(filler)(inputs, subject.convention.time_first) if name else None
    if not isinstance(picture, Tensor) or picture.dim() != 4 or picture.shape[1] > min(picture.shape[2:]):
        return None  # a video, or channels last
    numbers = torch.randperm(picture.numel(), generator=subject.generator(21))  # each is there once
    marked = numbers.view(picture.shape).float()  # (1, C, H, W)
    with attempt(), torch.no_grad(), recorded_ops() as ops:  # it may be given by position, or in a dict
        subject.convention.raw(subject.model, inputs, **{name: marked})
    W, area, origins = marked.shape[3], marked.shape[2] * marked.shape[3], numbers.argsort()
    for call, tokens in ((call, call.inputs[0]) for call in ops.calls if call.name in LINEAR and call.inputs):
        is_of_rows = tokens.dim() == 3 and len(tokens) == 1 and tokens.numel() == numbers.numel()
        if not is_of_rows or not torch.equal(tokens.flatten().sort()[0], marked.flatten().sort()[0]):
            continue  # not the picture's own numbers
        for token, places in enumerate(origins[tokens[0].long()] % area):  # (n, C * pixels)
            pixels = places.unique()
            high, wide = (int(axis.max() - axis.min()) + 1 for axis in (pixels // W, pixels % W))
            if high * wide > len(pixels):
                witness = f"token {token} holds {len(pixels)} pixels, which lie apart in {high} x {wide} of the picture"
                causes, against = (("A04", 0.8), ("M16", 0.2)), "what a patch is: pixels that lie together"
                return finding(causes, witness, where=subject.place_of(call), against=against)
        break
    return None


def reshape_causes(index: int, maps: Sequence[AttentionCall]) -> Causes:
    """Heads are split before the attention and merged just after it."""
    before = [attention.index for attention in maps if attention.index < index]
    merging = bool(before) and index - before[-1] <= 6
    return (("A05", 0.9), ("A04", 0.1)) if merging else (("A04", 0.9), ("A05", 0.1))


@dataclass(frozen=True)
class Scrambled:
    """An operation that only moves numbers, and after which `position` holds numbers of `token`."""

    index: int
    call: ModuleCall
    position: int
    token: int


def scrambled(calls: Sequence[ModuleCall], n: int, beside: Set[int] = frozenset()) -> Scrambled | None:
    """The first reshape after which one position of an axis of length n holds numbers of several others.

    Only tensors with exactly one such axis before and after are judged: `n` has to be a length that no other axis has.

    Args:
        beside: lengths of axes of tokens, beside which an axis of length n holds none: it is one of heads.
    """
    ends: set[int] = set()
    for index, axis, later in _judged(calls, n):
        if index in ends or beside & {*calls[index].inputs[0].shape} & {*calls[index].outputs[0].shape}:
            continue
        call = calls[index]
        before, after = _in_a_row(call), call.outputs[0]
        tags = torch.arange(n).reshape([-1 if number == axis else 1 for number in range(before.dim())])
        moved = tags.expand(before.shape).contiguous().reshape(after.shape)  # every number replaced by its token's
        numbers = torch.arange(n).reshape([-1 if number == later else 1 for number in range(after.dim())])
        wrong = (moved != numbers).nonzero()
        if len(wrong) and (end := _end_of_shift(before, calls, index)) is not None:
            ends.add(end)
        elif len(wrong):
            at = wrong[0]
            return Scrambled(index, call, int(at[later]), int(moved[tuple(at)]))
    return None


def are_judged(calls: Sequence[ModuleCall], n: int) -> bool:
    """Whether `scrambled` has anything to look at."""
    return any(True for _ in _judged(calls, n))


def _judged(calls: Sequence[ModuleCall], n: int) -> Iterator[tuple[int, int, int]]:
    """Reshapes by their index, with the axis of length n before and after."""
    for index, call in enumerate(calls):
        if call.name in MOVES and call.inputs and call.outputs:
            tensors = _in_a_row(call), call.outputs[0]
            axis, later = (_axis(tensor, n, is_map=_lays_in_a_row(call)) for tensor in tensors)
            if axis is not None and later is not None:
                yield index, axis, later


def _lays_in_a_row(call: ModuleCall) -> bool:
    """Whether it makes a row, (B, h * w, D), of the places of a map, (B, D, h, w), as of patches."""
    if call.name not in MOVES or not call.inputs or not call.outputs:
        return False
    before, after = call.inputs[0].shape, call.outputs[0].shape
    is_map = len(before) == 4 and len(after) == 3 and before[1] != before[2] * before[3]
    return is_map and tuple(after[1:]) == (before[2] * before[3], before[1])


def _in_a_row(call: ModuleCall) -> Tensor:
    """What it reads, with the places of a map as one axis if it puts them into a row."""
    return call.inputs[0].flatten(2) if _lays_in_a_row(call) else call.inputs[0]


def _end_of_shift(before: Tensor, calls: Sequence[ModuleCall], index: int) -> int | None:
    """Where the axes soon come back in their order and one of them shorter by one: so relative positions are shifted.

    A row of scores is padded, read with its axes exchanged, cut, and read as it was: each row moves by one more.
    """
    for number in range(index + 1, min(index + 4, len(calls))):
        call = calls[number]
        if call.name in MOVES and call.outputs and call.outputs[0].dim() == before.dim():
            shorter = [then - now for then, now in zip(before.shape, call.outputs[0].shape, strict=True)]
            if sorted(shorter) == [0] * (len(shorter) - 1) + [1]:
                return number
    return None


def distances(n: int) -> set[int]:
    """Sizes that tell of relative positions among n, which reshapes shift."""
    return {n - 1, n + 1, 2 * n - 1, 2 * n, 2 * n + 1}


def _axis(tensor: Tensor, n: int, *, is_map: bool) -> int | None:
    axes = [number for number, size in enumerate(tensor.shape) if size == n]
    is_shifted = not is_map and bool(distances(n) & {*tensor.shape})
    return axes[0] if len(axes) == 1 and tensor.dim() >= 3 and not is_shifted else None
