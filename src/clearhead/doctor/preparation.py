"""From a model as it came to the subject of an examination: copies, how they are called, rows that fit."""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from clearhead.doctor.calling import Convention, find_convention
from clearhead.doctor.calling.batches import GivenBatch
from clearhead.doctor.calling.lengths import length_of_source, lengths_for, lengths_near
from clearhead.doctor.kind import hints_of
from clearhead.doctor.probes.tracing import quiet, without_dropout
from clearhead.doctor.problems import attempt, message_of
from clearhead.doctor.spec import Assumption, Journal, Level, Spec
from clearhead.doctor.state_guard import CPU, add_noise, is_large, kept, perturbed, twin
from clearhead.doctor.subject import Subject
from clearhead.errors import DataError


def prepare(
    original: nn.Module,
    spec: Spec,
    level: Level,
    seed: int,
    batch: GivenBatch | None = None,
    device: torch.device = CPU,
    failed: AbstractSet[str] = frozenset(),
) -> Subject:
    """Copies of a model, and how they are called.

    Raises:
        DataError: it cannot be copied, or no way was found to call it.
    """
    try:
        fresh, model = twin(original, device), perturbed(original, seed, device)
    except (RuntimeError, TypeError, AttributeError) as error:
        message = message_of(error)
        name = type(original).__name__
        raise DataError(f"{name} cannot be copied ({message}); give a model that copy.deepcopy can copy") from None
    hints = hints_of(original)
    intended = spec if spec.kind else replace(spec, kind=hints.kind if hints.sure else None)
    with quiet():
        known = find_convention(
            model,
            intended,
            may_be_causal=intended.kind != "bidirectional",
            may_have_source=spec.kind in (None, "seq2seq"),
            short=level == "quick" and is_large(model),
            named=batch.names if batch else (),
            lengths=batch.lengths if batch else (),
        )
    own = batch.arranged(model, known) if batch else None
    subject = Subject(original, spec, level, seed, device, fresh, model, hints, known, own, failed)
    subject.journal.assumptions.extend(_assumptions(spec, known.convention))
    subject = replace(subject, drops_in_evaluation=True) if _drops_in_evaluation(subject) else subject
    T = subject.calling.T
    return _with_rows_of(subject, [T, *(shorter for shorter in lengths_for(model, short=True) if 1 < shorter < T)])


@contextmanager
def redrawn(subject: Subject) -> Iterator[Subject]:
    """The model, mended as it is, with other noise, other tokens and, where it takes them, rows of other lengths."""
    with kept(list(subject.model.parameters())):
        add_noise(subject.model, subject.seed + 1)
        lengths = [T for T in lengths_for(subject.model, short=subject.is_hurried) if 1 < T != subject.calling.T]
        with torch.enable_grad():
            lengths = [*lengths[:2], *lengths_near(subject.model, subject.calling.T)]
            yield _with_rows_of(replace(subject, seed=subject.seed + 1, journal=Journal()), lengths)


def _drops_in_evaluation(subject: Subject) -> bool:
    """Whether two calls differ by dropout, and by nothing else that is random."""
    with attempt() as attempted:
        if subject.repeated.is_same:
            return False
        dropping, inputs = without_dropout(), subject.inputs(3)
        with torch.no_grad(), dropping:
            first, second = (subject.convention.logits(subject.model, inputs) for _ in range(2))
    if attempted.failed:  # it does not run twice: 'deterministic' makes the same calls, and its report tells why
        return False
    return bool(dropping.dropouts) and torch.equal(first, second)


def _with_rows_of(subject: Subject, lengths: Iterable[int]) -> Subject:
    """With rows of the first of these lengths that it takes, in a batch of one row more than that; else the same.

    So many rows are compared at once, and some models take no more than their buffers have.
    """
    for T in lengths:
        with attempt() as attempted, quiet():
            subject.run(subject.inputs(T + 1, T=T))
        if attempted.failed:  # too many rows still, or a length that it does not take: 'rows' is skipped, and says so
            continue
        match = replace(subject.calling, T=T, S=length_of_source(T, subject.model))
        return subject if subject.calling.T == T else replace(subject, calling=match)
    return subject


def _assumptions(spec: Spec, convention: Convention) -> Iterator[Assumption]:
    """What the way of calling it rests on."""
    if spec.time_first is None and convention.time_first:
        reason = "tokens meet along the first axis, and are counted along no other"
        yield Assumption("axes", "time first, (T, B)", (reason,))
    for name, filler in convention.call:
        if filler.startswith("causal: "):
            reason = "with it no token reaches an earlier position"
            yield Assumption(name, f"given by the caller, {filler[8:]}", (reason,))
