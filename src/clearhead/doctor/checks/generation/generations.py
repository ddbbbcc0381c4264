"""What the model's own `generate` writes: the same for the same request, and what its logits say."""

import inspect
import random
import re
import sys
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import SOUND, Skipped, finding, model_check
from clearhead.doctor.report.findings import Finding, Where
from clearhead.doctor.state_guard import twin
from clearhead.doctor.subject import Subject

NEW, FEW = 5, 3  # tokens; few where every one takes long
ROWS = 8  # behind which tokens are written: enough of them to see which ones may be
CLEAR = 1e-3  # of the logits' spread: how far the best is ahead where nobody can argue
COUNT = re.compile(r"new|len|steps|tokens|^n$|^num|^k$")


@model_check(
    "K11",
    "generations",
    order=210,
    covers=("K06", "K08", "K11", "T08"),
    holds="generate() writes what the logits say, and answers equal requests alike",
    needs=(*SOUND, "caches"),
    of_tokens=True,
)
def generations(subject: Subject) -> list[Finding]:
    """One request, another, and the first again; a greedy one begins with the likeliest token of the last logits."""
    method = getattr(type(subject.original), "generate", None)
    if method is None or subject.convention.has_source or subject.convention.time_first or not _is_own(method):
        raise Skipped("it has no generate() of its own that reads ids")
    if subject.shifts_its_rows:
        raise Skipped("its last logits are about its last token, and not about the next")
    new = FEW if subject.is_hurried else NEW
    ids, other = (subject.inputs(2, salt=salt).ids[:, :6].contiguous().to(subject.device) for salt in (17, 18))
    model = twin(subject.model)
    first, again, drew = _asked_twice(model, ids, other, new, seed=1)
    where = Where("", type(subject.model).__name__, *_home(method))
    if not torch.equal(first, again):  # it draws at random, or remembers
        anew, again, _ = _asked_twice(twin(subject.model), ids, other, new, seed=0)
        if torch.equal(anew, again) or not torch.equal(first, anew):
            return []
        witness = "the same request, with the same seed, is answered otherwise after another request"
        return [finding((("K06", 0.8), ("T08", 0.2)), witness, where=where)]
    subject.journal.paths.append(f"generate(), {new} tokens")
    if drew or not _likelier(subject, ids.cpu(), first[:, 0]).any():
        return []  # who draws may take another than the best
    rows = subject.inputs(ROWS, salt=17).ids[:, :6]
    written = _written(model, rows.to(subject.device), new, seed=0)[:, 0]
    likelier = _likelier(subject, rows, written)
    # some tokens are never written, as padding is not, or not again: those that are written behind another row may be
    allowed = torch.zeros_like(likelier[0]).scatter(0, written, True).expand_as(likelier).scatter(1, rows, False)
    wrong = likelier & allowed
    if not wrong.any():
        return []
    row, better = (int(part) for part in wrong.nonzero()[0])
    witness = (
        f"generate() writes token {int(written[row])} where the last logits say {better}, which it writes elsewhere"
    )
    return [finding((("K11", 0.7), ("K08", 0.3)), witness, where=where)]


def _likelier(subject: Subject, rows: Tensor, written: Tensor) -> Tensor:
    """(B, V), True for tokens that are clearly likelier behind rows (B, T) than those that were written (B,)."""
    with torch.no_grad(), subject.quiet():
        logits = subject.run(Inputs(rows))[:, -1]  # (B, V)
    return logits > logits.gather(1, written[:, None]) + CLEAR * float(logits.std())


def _asked_twice(model: nn.Module, ids: Tensor, other: Tensor, new: int, seed: int) -> tuple[Tensor, Tensor, bool]:
    """What a model that nobody asked before writes with seed 0, and again, with this seed, after another request.

    And whether it drew random numbers for it.
    """
    first = _written(model, ids, new, seed=0)
    _written(model, other, new, seed=0)
    begun = _seeded(seed, ids.device)
    again = _written(model, ids, new, seed)
    return first, again, not torch.equal(begun, _state(ids.device))


def _seeded(seed: int, device: torch.device) -> Tensor:
    """Seed whatever a sampler may draw from; the state of the generator that torch's samplers use there."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed(seed)
    return _state(device)


def _state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _is_own(method: object) -> bool:
    return not str(getattr(method, "__module__", "")).startswith(("transformers.", "torch."))


def _written(model: nn.Module, ids: Tensor, new: int, seed: int) -> Tensor:
    """The new tokens (B, n) of a call with ids and how many there are to be."""
    parameters = list(inspect.signature(model.generate).parameters.values())  # type: ignore[arg-type]
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if not parameters or len(needed) > 2 or (len(needed) == 2 and not COUNT.search(needed[1].name)):
        raise Skipped("generate() wants more than ids and a number of tokens")
    _seeded(seed, ids.device)
    arguments = (ids, new) if len(needed) == 2 else (ids,)
    named = {p.name: new for p in parameters[1:] if len(needed) < 2 and "new" in p.name and COUNT.search(p.name)}
    with torch.no_grad():
        written = model.generate(*arguments, **named)  # type: ignore[operator]
    if not isinstance(written, Tensor) or written.dim() != 2 or written.shape[0] != len(ids):
        raise Skipped("generate() returns no rows of ids")
    n = ids.shape[1]
    behind = written.shape[1] > n and torch.equal(written[:, :n], ids)
    if not behind and written.shape[1] > new:
        raise Skipped("generate() returns other ids than it was given")
    return (written[:, n:] if behind else written).cpu()


def _home(method: Any) -> tuple[str | None, int | None]:
    try:
        return inspect.getsourcefile(method), inspect.getsourcelines(method)[1]
    except (TypeError, OSError):
        return None, None
