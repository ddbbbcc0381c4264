"""Query heads that share keys and values: which of them read which."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.doctor.checks.base import finding
from clearhead.doctor.checks.locations import place_of
from clearhead.doctor.probes.attention import AttentionCall
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject


def groups(subject: Subject, maps: Sequence[AttentionCall]) -> list[Finding]:
    """A head reads the keys and the values of one head; neighbours share them, as checkpoints have it."""
    for attention in maps:
        keys, values = _shared_with(attention.key), _shared_with(attention.value)
        if len(keys) != len(values) or len({*keys}) == len(keys) or len({*keys}) != len({*values}):
            continue  # none are shared, or keys are shared among others than values are on purpose
        where = place_of(subject, attention.call)
        if keys != values:
            head = next(head for head in range(len(keys)) if keys[head] != values[head])
            witness = f"query head {head} reads the keys of head {keys[head]} and the values of head {values[head]}"
            return [finding("A07", witness, value=head, where=where)]
        if keys != sorted(keys):
            head = next(head for head in range(1, len(keys)) if keys[head] < keys[head - 1])
            first = keys[head]
            witness = f"query heads {first} and {head} share keys and values, and those between them have others"
            return [finding("A07", witness, value=head, where=where, status="warn")]
    return []


def _shared_with(tensor: Tensor | None) -> list[int]:
    """For each row and head, (N, T, K) or (B, H, T, K), the first that holds the same numbers."""
    if tensor is None or tensor.dim() < 3:
        return []
    heads = tensor.detach().reshape(-1, *tensor.shape[-2:])
    return [next(k for k in range(n + 1) if torch.equal(heads[k], heads[n])) for n in range(len(heads))]
