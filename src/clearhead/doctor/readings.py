"""Other readings of a model. What nobody said of it was guessed; a failure has to hold however it is read."""

from collections.abc import Iterator
from dataclasses import replace

from clearhead.doctor.calling.inputs import role_of
from clearhead.doctor.calling.names import SOURCE, TARGET, Call, fillers_of_aside
from clearhead.doctor.calling.numbers import holds_numbers
from clearhead.doctor.calling.trial import CallAttempt, try_call
from clearhead.doctor.probes.tracing import quiet
from clearhead.doctor.problems import attempt
from clearhead.doctor.spec import Journal, Kind
from clearhead.doctor.subject import Subject


def readings(subject: Subject) -> Iterator[tuple[str, Subject]]:
    """Every other reading of its kind and of what it is given, in words, and the subject read like that."""
    if _says_its_kind(subject):
        return
    T, S = subject.calling.T, subject.calling.S
    for what, call in _other_calls(subject):
        convention, is_exchanged = replace(subject.convention, call=call, output=()), what.endswith("source")
        with quiet():
            outcome = try_call(subject.model, CallAttempt(convention, *((S, T) if is_exchanged else (T, S))))
        if outcome.known is not None and not outcome.message:
            known = replace(outcome.known, axes=subject.calling.axes)
            yield what, replace(subject, calling=known, journal=Journal())
    with attempt():  # who moves whom cannot be told of some models; then nothing speaks for another kind
        future, past = subject.matrix.alive.triu(1).sum(), subject.matrix.alive.tril(-1).sum()
        does: Kind = "bidirectional" if future else "causal"
        if subject.kind not in ("seq2seq", does) and (2 * future >= past or not future):  # else it fits neither
            yield f"as {does}", replace(subject, spec=replace(subject.spec, kind=does), journal=Journal())


def _says_its_kind(subject: Subject) -> bool:
    """Whether somebody declared the kind, or several things suggest it and nothing else.

    What it does under a mask of ours suggests nothing. A model that writes tokens and mentions a causal mask is meant
    to have one, whatever it does.
    """
    if subject.assumed_kind is None or subject.gives_rows:
        return True
    if subject.kind == "seq2seq":
        named = {role_of(filler): name for name, filler in subject.convention.call}
        is_named = SOURCE.search(named.get("source", "")) or TARGET.search(named.get("ids", ""))
        sources = [filler for _, filler in subject.convention.call if role_of(filler) == "source"]
        is_told_apart = len(sources) == 1 and subject.convention.reads_words("ids") == holds_numbers(sources[0])
        return bool(is_named or is_told_apart or subject.convention.dicts)
    reasons, is_ours = subject.assumed_kind.reasons, any("causal" in filler for _, filler in subject.convention.call)
    is_clear = not is_ours and len(reasons) > 1 and not reasons[-1].startswith("although")
    writes = subject.convention.reads_words("ids") and subject.inside.logits.shape[-1] == subject.calling.vocab_size
    is_masked = writes and subject.kind == "causal" and subject.hints.means_a_mask
    return is_clear or is_masked or subject.hints.says(subject.kind)


def _other_calls(subject: Subject) -> Iterator[tuple[str, Call]]:
    """The call with source and target exchanged, or only one of them read; and with a mask of padding alone."""
    call = subject.convention.call
    roles = {role: name for name, filler in call if (role := role_of(filler)) in ("ids", "source")}
    if len(roles) == 2:
        exchanged = {"ids": "source", "source": "ids"}
        yield f"with {roles['ids']} as the source", tuple((name, _as(filler, exchanged)) for name, filler in call)
        for role in ("source", "ids"):
            alone = {"source": "ids"} | {role: "zeros like ids"}
            yield f"with {roles[role]} as no row", tuple((name, _as(filler, alone)) for name, filler in call)
    for name, filler in call:
        if filler.startswith("causal: "):
            keeping = (other for other in fillers_of_aside(name) if other.startswith("keep: "))
            for other in keeping:
                yield f"with {name} as a mask of padding", tuple((n, other if n == name else f) for n, f in call)


def _as(filler: str, roles: dict[str, str]) -> str:
    """A filler with other rows in its place, and its masks with theirs."""
    role = role_of(filler)
    if role in roles:
        other = roles[role]
        return other if other.startswith("zeros") else other + filler.removeprefix(role)
    if "source" in roles and filler.startswith(("keep: ", "source keep: ", "positions", "source positions")):
        return filler.removeprefix("source ") if filler.startswith("source ") else f"source {filler}"
    return filler
