"""Whether padding is scored, and whether the end of a text is learned."""

from collections.abc import Iterator

import torch
from torch import Tensor

from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.checks.base import finding
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.logits import Asked
from clearhead.doctor.training.recording import Recording

TAIL = 3  # equal targets at the end of a row that look like padding


def padding(recording: Recording, asked: list[Asked]) -> Iterator[Finding]:
    """Position after position that reads padding and is asked for padding; no asking for the end."""
    for one in asked:
        pad = _pad_id(recording, one)
        if pad is None:
            yield from _looks_padded(one)
            return
        reads = one.ids == pad
        scored = reads & (one.targets == pad)
        if bool(scored.any()):
            row, place = (int(part) for part in scored.nonzero()[0])
            witness = (
                f"position {place} of row {row} reads padding (token {pad}) and is asked for padding, like "
                f"{int(scored.sum())} of the {one.count} that are scored"
            )
            yield finding("D05", witness, value=int(scored.sum()), threshold=0)
            return
    yield from _end_is_unscored(recording, asked)


def _pad_id(recording: Recording, asked: Asked) -> int | None:
    """Said by the embedding, by the config, or by a mask that was given."""
    if asked.embedded.padding_id is not None:
        return asked.embedded.padding_id
    said = _of_config(recording, "pad_token_id")
    return said if said is not None else _masked(recording, asked)


def _of_config(recording: Recording, name: str) -> int | None:
    found = [getattr(getattr(root, "config", None), name, None) for root in recording.roots]
    return next((value for value in found if isinstance(value, int)), None)


def _masked(recording: Recording, asked: Asked) -> int | None:
    """The one token that a mask of zeros and ones hides, at the end or at the beginning of rows."""
    forward = asked.forward
    for mask in tensors((list(forward.args), dict(forward.kwargs))):
        if mask.shape != asked.ids.shape or not _is_binary(mask):
            continue
        for hidden in (~mask.bool().cpu(), mask.bool().cpu()):
            tokens = torch.unique(asked.ids[hidden])
            if (
                len(tokens) == 1
                and not bool(hidden.all())
                and bool((hidden[:, 0] | hidden[:, -1])[hidden.any(1)].all())
            ):
                return int(tokens)
    return None


def _is_binary(mask: Tensor) -> bool:
    return mask.dtype == torch.bool or bool(((mask == 0) | (mask == 1)).all())


def _looks_padded(asked: Asked) -> Iterator[Finding]:
    """Rows that end in runs of one token, of several lengths, all of it scored."""
    last = asked.targets[:, -1]
    tokens = torch.unique(last[last >= 0])
    if len(tokens) != 1 or len(asked.targets) < 3 or bool((last < 0).any()):
        return
    runs = [int((row.flip(0) != tokens[0]).int().argmax()) for row in asked.targets]
    lengths = [run for run in runs if run >= TAIL]
    if len(set(runs)) > 1 and 2 * len(lengths) >= len(runs):
        witness = (
            f"rows end in up to {max(runs)} tokens {int(tokens[0])}, of different numbers, and all of them are scored: "
            "they look like padding"
        )
        yield finding("D05", witness, value=max(runs), threshold=TAIL, status="warn")


def _end_is_unscored(recording: Recording, asked: list[Asked]) -> Iterator[Finding]:
    """Padding that is the end of a text at the same time, so that ignoring it ignores the end."""
    pad, end = _of_config(recording, "pad_token_id"), _of_config(recording, "eos_token_id")
    if pad is None or pad != end:
        return
    padded = any(bool((one.ids[:, -1] == pad).any()) for one in asked)
    if padded and not any(bool((one.targets == end).any()) for one in asked):
        witness = (
            f"padding and the end of a text are both token {end}; rows are padded, and no position is asked for it"
        )
        yield finding("D04", witness, value=0, threshold=1, status="warn")
