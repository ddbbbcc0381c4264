"""What the model's own `generate` writes: the same for the same request, and what its logits predict."""

import inspect
import random
import re
import sys
from typing import Any

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import is_of_a_library
from clearhead.doctor.checks.base import SOUND, Finding, Skipped, Status, Subject, Where, attempt, finding, model_check
from clearhead.doctor.probes.tensors import first_true
from clearhead.doctor.state_guard import twin

NEW, FEW = 5, 3  # tokens; few where every one takes long
ROWS = 8  # behind which tokens are written: enough of them to see which ones may be
CLEAR = 1e-3  # of the logits' spread: how far the best token must lead
WINDOW = re.compile(r"context|block_size|window|ctx")
COUNT = re.compile(r"new|len|steps|tokens|^n$|^num|^k$")
WRITERS = "generate", "sample", "generate_text", "inference"  # what people call it
GREEDY = {"do_sample": False, "greedy": True, "top_k": 1, "temperature": 1e-4}  # the first that it takes


@model_check("K11", "generations", order=210, covers=("K06", "K08", "T08"), needs=(*SOUND, "caches"), of_tokens=True)
def generations(subject: Subject) -> list[Finding]:
    """`generate` writes the most likely token unless it samples, and answers equal requests alike."""
    name, method = writer_of(subject)
    new, where = FEW if subject.is_hurried else NEW, place_of_writer(subject, method)
    ids, other = (subject.inputs(2, salt=salt).ids[:, :6].contiguous().to(subject.device) for salt in (17, 18))
    model = twin(subject.model)
    first, again, drew = _before_and_after(getattr(model, name), ids, other, new, seed=1)
    if not torch.equal(first, again):  # it draws at random, or remembers
        anew, again, _ = _before_and_after(getattr(twin(subject.model), name), ids, other, new, seed=0)
        if torch.equal(anew, again) or not torch.equal(first, anew):
            raise Skipped("generate() draws at random, so nothing it writes is known beforehand")
        witness = "the same request with the same seed has another answer after a different request"
        return [finding((("K06", 0.8), ("T08", 0.2)), witness, where=where)]
    subject.journal.paths.append(f"{name}(), {new} tokens")
    if drew and not _greedy(method):
        raise Skipped("generate() samples, and may take another token than the likeliest")
    rows = subject.inputs(ROWS, salt=17).ids[:, :6]
    written = _written(getattr(model, name), rows.to(subject.device), new, seed=0)
    for step in range(written.shape[1]):
        unlikely = _unlikely(subject, rows, written, step)
        if unlikely and _reads_twice(subject, rows, written, step):
            unlikely += "; it is the likeliest if the last token before it is read twice"
            return [finding((("K08", 0.9), ("K11", 0.1)), unlikely, where=where)]
        if unlikely:  # later, a search may take less likely tokens for a likelier whole
            status: Status = "fail" if step == 0 else "warn"
            return [finding((("K11", 0.7), ("K08", 0.3)), unlikely, where=where, status=status)]
    return []


def writer_of(subject: Subject) -> tuple[str, Any]:
    """The person's own method that writes tokens behind rows of ids, and its name.

    Raises:
        Skipped: there is none.
    """
    names = WRITERS if subject.kind == "causal" else WRITERS[:1]
    name = next((name for name in names if callable(getattr(type(subject.original), name, None))), "")
    method: Any = getattr(type(subject.original), name, None)
    reads_ids = not subject.convention.has_source and not subject.convention.time_first
    if method is None or not reads_ids or is_of_a_library(method):
        raise Skipped("it has no generate() of its own that reads ids")
    if subject.shifts_its_rows:
        raise Skipped("its last logits predict its last token, not the next")
    return name, method


def place_of_writer(subject: Subject, method: Any) -> Where:
    """Where the code of such a method is."""
    code = getattr(inspect.unwrap(method), "__code__", None)
    return Where("", type(subject.model).__name__, *((code.co_filename, code.co_firstlineno) if code else ()))


def _reads_twice(subject: Subject, rows: Tensor, written: Tensor, step: int) -> bool:
    """Whether every row goes on as if its last token stood there twice, as where a prompt's end is fed once more."""
    before = torch.cat([rows, written[:, :step]], dim=1)
    with attempt():
        return not _likelier(subject, torch.cat([before, before[:, -1:]], dim=1), written[:, step]).any()
    return False


def _unlikely(subject: Subject, rows: Tensor, written: Tensor, step: int) -> str | None:
    """What speaks against the token that is written in a step (B, n) after these rows (B, T); None if nothing does."""
    before, token = torch.cat([rows, written[:, :step]], dim=1), written[:, step]
    with attempt() as attempted:
        likelier = _likelier(subject, before, token)
    if attempted.failed:  # it takes no longer rows
        return None
    # some tokens are never written, such as padding, or not twice: those that are written after another row may be
    allowed = torch.zeros_like(likelier[0]).scatter(0, written.flatten(), True).expand_as(likelier)
    allowed = allowed.scatter(1, before, False)
    if not (likelier & allowed).any():
        return None
    row, better = first_true(likelier & allowed)
    at = "" if step == 0 else f" as number {step + 1}"
    return f"generate() writes token {int(token[row])}{at} although {better} is more likely, which it writes elsewhere"


def _likelier(subject: Subject, rows: Tensor, written: Tensor) -> Tensor:
    """(B, V), True for tokens that are clearly more likely after rows (B, T) than those that were written (B,)."""
    logits = subject.run(Inputs(rows))[:, -1]  # (B, V)
    return logits > logits.gather(1, written[:, None]) + CLEAR * float(logits.std())


def _before_and_after(method: Any, ids: Tensor, other: Tensor, new: int, seed: int) -> tuple[Tensor, Tensor, bool]:
    """What a method first writes with seed 0, what with this seed after another request, and whether that sampled."""
    first = _written(method, ids, new, seed=0)
    _written(method, other, new, seed=0)
    begun = _seeded(seed, ids.device)
    again = _written(method, ids, new, seed)
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


def options_of(method: Any) -> dict[str, Any]:
    """What may be left out of a call, by name, and what it is then."""
    return {p.name: p.default for p in inspect.signature(method).parameters.values() if p.default is not p.empty}


def _greedy(method: Any) -> dict[str, Any]:
    """The argument by which it takes the likeliest token; empty if it has none."""
    return next(({name: value} for name, value in GREEDY.items() if name in options_of(method)), {})


def called(method: Any, ids: Tensor, new: int, seed: int, options: dict[str, Any]) -> object:
    """What a call with ids and the number of tokens to write returns.

    Raises:
        Skipped: it needs more than that.
    """
    parameters = list(inspect.signature(method).parameters.values())
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    more = {p.name: ids.shape[1] + new for p in needed[1:] if WINDOW.search(p.name)}
    needed = [p for p in needed if p.name not in more]
    if not parameters or len(needed) > 2 or (len(needed) == 2 and not COUNT.search(needed[1].name)):
        raise Skipped("generate() needs more than ids and a number of tokens")
    counts = needed[1:] or [p for p in parameters[1:] if "new" in p.name and COUNT.search(p.name)]
    _seeded(seed, ids.device)
    with torch.no_grad():
        return method(ids, **more, **{p.name: new for p in counts}, **options)


def new_tokens(returned: object, ids: Tensor) -> Tensor | None:
    """The tokens (B, n) that were written behind rows of ids; None if they are not to be found in what was returned."""
    if not isinstance(returned, Tensor) or returned.dim() != 2 or len(returned) != len(ids) or not returned.numel():
        return None
    n = ids.shape[1]
    continues = returned.shape[1] > n and torch.equal(returned[:, :n].cpu(), ids.cpu())
    return None if returned.is_floating_point() else (returned[:, n:] if continues else returned).cpu()


def _written(method: Any, ids: Tensor, new: int, seed: int) -> Tensor:
    """The new tokens (B, n) of such a call that takes the likeliest ones, if it can."""
    written = new_tokens(called(method, ids, new, seed, _greedy(method)), ids)
    if written is None or written.shape[1] > new:
        raise Skipped("generate() does not return rows of ids, or not behind those that it was given")
    return written
