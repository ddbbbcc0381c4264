"""Whether padding is scored, and whether the end of a text is learned."""

from collections.abc import Iterator

import torch
from torch import Tensor

from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.checks.base import finding
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.logits import LogitsXray
from clearhead.doctor.training.recording import Recording

TAIL = 3  # equal targets at the end of a row that look like padding


def padding(recording: Recording, questions: list[LogitsXray]) -> Iterator[Finding]:
    """Position after position that reads padding and is asked for padding; no asking for the end."""
    for question in questions:
        pad = _pad_id(recording, question)
        if pad is None:
            yield from _looks_padded(question)
            return
        reads = question.ids == pad
        scored = reads & (question.targets == pad)
        if bool(scored.any()):
            row, position = (int(part) for part in scored.nonzero()[0])
            witness = (
                f"position {position} of row {row} reads padding (token {pad}) and is asked for padding, like "
                f"{int(scored.sum())} of the {question.count} that are scored"
            )
            yield finding("D05", witness, value=int(scored.sum()), threshold=0)
            return
    yield from _end_is_unscored(recording, questions)


def _pad_id(recording: Recording, question: LogitsXray) -> int | None:
    """Said by the embedding, by the config, or by a mask that was given."""
    if question.embedded.padding_id is not None:
        return question.embedded.padding_id
    declared = _of_config(recording, "pad_token_id")
    return declared if declared is not None else _masked(recording, question)


def _of_config(recording: Recording, name: str) -> int | None:
    values = [getattr(getattr(root, "config", None), name, None) for root in recording.roots]
    return next((value for value in values if isinstance(value, int)), None)


def _masked(recording: Recording, question: LogitsXray) -> int | None:
    """The one token that a mask of zeros and ones hides, at the end or at the beginning of rows."""
    forward = question.forward
    for mask in tensors((list(forward.args), dict(forward.kwargs))):
        if mask.shape != question.ids.shape or not _is_binary(mask):
            continue
        for hidden in (~mask.bool().cpu(), mask.bool().cpu()):
            tokens = torch.unique(question.ids[hidden])
            if (
                len(tokens) == 1
                and not bool(hidden.all())
                and bool((hidden[:, 0] | hidden[:, -1])[hidden.any(1)].all())
            ):
                return int(tokens)
    return None


def _is_binary(mask: Tensor) -> bool:
    return mask.dtype == torch.bool or bool(((mask == 0) | (mask == 1)).all())


def _looks_padded(question: LogitsXray) -> Iterator[Finding]:
    """Rows that end in runs of one token, of several lengths, all of it scored."""
    last = question.targets[:, -1]
    tokens = torch.unique(last[last >= 0])
    if len(tokens) != 1 or len(question.targets) < 3 or bool((last < 0).any()):
        return
    runs = [int((row.flip(0) != tokens[0]).int().argmax()) for row in question.targets]
    lengths = [run for run in runs if run >= TAIL]
    if len(set(runs)) > 1 and 2 * len(lengths) >= len(runs):
        witness = (
            f"rows end in up to {max(runs)} tokens {int(tokens[0])}, of different numbers, and all of them are scored: "
            "they look like padding"
        )
        yield finding("D05", witness, value=max(runs), threshold=TAIL, status="warn")


def _end_is_unscored(recording: Recording, questions: list[LogitsXray]) -> Iterator[Finding]:
    """Padding that is the end of a text at the same time, so that ignoring it ignores the end."""
    pad, end = _of_config(recording, "pad_token_id"), _of_config(recording, "eos_token_id")
    if pad is None or pad != end:
        return
    padded = any(bool((question.ids[:, -1] == pad).any()) for question in questions)
    if padded and not any(bool((question.targets == end).any()) for question in questions):
        witness = (
            f"padding and the end of a text are both token {end}; rows are padded, and no position is asked for it"
        )
        yield finding("D04", witness, value=0, threshold=1, status="warn")
