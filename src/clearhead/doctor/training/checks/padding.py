"""Whether padding is scored, and whether the end of a text is learned."""

from collections.abc import Iterator

import torch

from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.calling.settings import setting
from clearhead.doctor.checks.base import finding
from clearhead.doctor.probes.tensors import first_true
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.logits import LogitsXray
from clearhead.doctor.training.recording import Recording

TAIL = 3  # equal targets at the end of a row that look like padding


def padding(recording: Recording, xrays: list[LogitsXray]) -> Iterator[Finding]:
    """Positions that read padding and whose target is padding; and ends of texts that are no target."""
    for xray in xrays:
        known, guessed = _pad_id(recording, xray), _of_runs(xray)
        pad = guessed if known is None else known
        scored = (xray.ids == pad) & (xray.targets == pad) if pad is not None else torch.zeros_like(xray.ids).bool()
        if scored.any():
            number, (row, position) = int(scored.sum()), first_true(scored)
            doubt = "" if known is not None else ", which ends rows in runs of different lengths"
            witness = (
                f"position {position} of row {row} reads padding (token {pad}{doubt}) and its target is padding, as in "
                f"{number} of the {xray.count} scored positions"
            )
            yield finding("D05", witness, value=number, threshold=0, status="fail" if known is not None else "warn")
    yield from _end_is_unscored(recording, xrays)


def _pad_id(recording: Recording, xray: LogitsXray) -> int | None:
    """From the embedding, the config, or a mask that the model was called with."""
    if xray.embedded.padding_id is not None:
        return xray.embedded.padding_id
    declared = _of_config(recording, "pad_token_id")
    return declared if declared is not None else _masked(xray)


def _of_config(recording: Recording, name: str) -> int | None:
    values = [setting(root, name) for root in recording.roots]
    return next((value for value in values if isinstance(value, int)), None)


def _masked(xray: LogitsXray) -> int | None:
    """The one token that a mask of zeros and ones hides, at the end or at the beginning of rows."""
    for mask in tensors((list(xray.forward.args), dict(xray.forward.kwargs))):
        if mask.shape != xray.ids.shape or not bool(((mask == 0) | (mask == 1)).all()):
            continue
        for hidden in (~mask.bool().cpu(), mask.bool().cpu()):
            tokens = torch.unique(xray.ids[hidden])
            at_an_end = (hidden[:, 0] | hidden[:, -1])[hidden.any(1)]
            if len(tokens) == 1 and not bool(hidden.all()) and bool(at_an_end.all()):
                return int(tokens)
    return None


def _of_runs(xray: LogitsXray) -> int | None:
    """The token that all rows of targets end with, in runs of several lengths."""
    last = xray.targets[:, -1]
    if len(last) < 3 or bool((last < 0).any()) or len(torch.unique(last)) != 1:
        return None
    runs = [int((row.flip(0) != last[0]).int().argmax()) for row in xray.targets]
    return int(last[0]) if len(set(runs)) > 1 and 2 * sum(run >= TAIL for run in runs) >= len(runs) else None


def _end_is_unscored(recording: Recording, xrays: list[LogitsXray]) -> Iterator[Finding]:
    """Padding that is also the end of a text, so that whoever ignores it ignores the end."""
    pad, end = _of_config(recording, "pad_token_id"), _of_config(recording, "eos_token_id")
    if pad is None or pad != end:
        return
    padded = any(bool((xray.ids[:, -1] == pad).any()) for xray in xrays)
    if padded and not any(bool((xray.targets == end).any()) for xray in xrays):
        witness = f"padding and the end of a text are both token {end}; rows are padded, and it is nowhere the target"
        yield finding("D04", witness, value=0, threshold=1, status="warn")
