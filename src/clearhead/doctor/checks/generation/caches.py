"""Decoding step by step with a cache gives the logits that reading everything at once gives."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import CACHE, parameters_of
from clearhead.doctor.checks.base import SOUND, Causes, Finding, Skipped, Subject, Where, attempt, finding, model_check
from clearhead.doctor.checks.generation.decoder import INSIDE, CachedDecoder, makers
from clearhead.doctor.checks.generation.decoding import causes_of, departure
from clearhead.doctor.probes.locations import place_of_call
from clearhead.doctor.state_guard import twin

TOLERANCE = 1e-3  # of the logits' spread
NAMED = re.compile(r"past|cache|kv")
OTHERS = ("use_", "return_", "cache_position", "cross", "encoder")  # how parameters begin that hold no cache of ours
COUNTED = ("position_ids", "positions", "pos_ids")  # parameters by which a caller gives the positions of the tokens


@model_check("K01", "caches", order=200, covers=("K02", "K03", "K04", "K06", "M16", "T08"), needs=SOUND,
             of_tokens=True)  # fmt: skip
def caches(subject: Subject) -> list[Finding]:
    """Decoding with the cache, one token or three at a time, gives the same logits as one call."""
    if not subject.looks_back_only:
        raise Skipped("what is read later changes the past that a cache would keep")
    names = [p.name for p in parameters_of(subject.model) if CACHE.search(p.name) and p.default is not p.empty]
    names = [name for name in names if not name.startswith(OTHERS)]
    names.sort(key=lambda name: not NAMED.search(name))  # a state may be something else
    if not names:
        subject = replace(subject, model=twin(subject.model))  # the calls fill its buffers
    inside = CachedDecoder(subject, None)
    if not names and inside.told_by is None:
        raise Skipped("it takes no cache")
    inputs = subject.inputs(2, salt=11)
    full = subject.run(inputs)  # (B, T, V)
    if not names:
        _refuse_forgetful(inside, inputs, full)
    (first, moved), (decoder, last) = _tried(_decoders(subject, names or [None]), inputs, full)
    subject.journal.paths.append(f"cached by {decoder.told_by}")
    if float(last.max()) > TOLERANCE or (decoder.counts and first is not decoder):
        return [_token_by_token(first, moved, inputs, unless=decoder.counts)]
    return _judged(decoder, inputs, full)


def _decoders(subject: Subject, names: Sequence[str | None]) -> Iterator[CachedDecoder]:
    """Every parameter with a cache from every maker; at last the caller also gives or hands on positions."""
    counted = (p.name for p in parameters_of(subject.model) if p.name in COUNTED)
    for counts in (None, *counted):
        for make in (None, *(makers(subject) if any(names) else ())):
            yield from (CachedDecoder(subject, name, make, counts) for name in names)
    if CachedDecoder(subject, None).begins is not None:
        yield from (CachedDecoder(subject, name, hands_on=True) for name in names)
    for make in (lambda _: {}, None):
        yield from (CachedDecoder(subject, name, make, whole=True) for name in names if name)


def _refuse_forgetful(decoder: CachedDecoder, inputs: Inputs, full: Tensor) -> None:
    """Raises `Skipped` if nothing that was read before moves the logits: then there is no cache inside."""
    begin, after = inputs.ids.shape[1] // 2, []
    for ids in (inputs.ids, inputs.ids.flip(0)):
        decoder.step(ids[:, :begin], inputs, decoder.start(inputs), 0)
        after.append(decoder.step(inputs.ids[:, begin : begin + 1], inputs, INSIDE, begin)[0])
    if float((after[1] - after[0]).abs().max()) <= TOLERANCE * (float(full.std()) or 1.0):
        raise Skipped(f"it takes '{decoder.told_by}', but remembers no tokens before it")


def _tried(
    decoders: Iterable[CachedDecoder], inputs: Inputs, full: Tensor
) -> tuple[tuple[CachedDecoder, Tensor], tuple[CachedDecoder, Tensor]]:
    """The first decoder that has a cache, and the first that agrees with one call, or else the first again.

    Each with how far the logits of each position (T,) move. Raises `Skipped` if none has a cache.
    """
    tried: list[tuple[CachedDecoder, Tensor]] = []
    problem: Exception | None = None
    for decoder in decoders:
        with attempt() as attempted:
            stepped, _ = decoder.decode(inputs, 1)
            if stepped is None:
                raise Skipped(f"'{decoder.parameter}' came back empty")
        if attempted.failed:
            problem = problem or attempted.error
            continue
        assert stepped is not None
        tried.append((decoder, _moved(stepped, full)))
        if float(tried[-1][1].max()) <= TOLERANCE:
            return tried[0], tried[-1]
    if not tried:
        raise problem or Skipped("it takes no cache")
    return tried[0], tried[0]


def _moved(stepped: Tensor, full: Tensor) -> Tensor:
    """How far the logits of each position move, (T,), relative to their spread."""
    return (stepped - full).abs().amax((0, 2)) / (float(full.std()) or 1.0)


def _token_by_token(decoder: CachedDecoder, moved: Tensor, inputs: Inputs, unless: str | None) -> Finding:
    """That single steps move logits, (T,). `unless`: a parameter that sets it right; a model may leave it to others."""
    value, position = float(moved.max()), int((moved > TOLERANCE).nonzero()[0])
    witness = f"logits {position} differ by {value:.1e} between one call and token by token"
    if unless:
        return finding("K01", f"{witness}, unless {unless} is given", value=value, threshold=TOLERANCE, status="warn")
    where, causes = _blame(decoder, inputs, 1)
    second = "how text is written: one token at a time"
    return finding(causes, witness, value=value, threshold=TOLERANCE, where=where, second=second)


def _judged(decoder: CachedDecoder, inputs: Inputs, full: Tensor) -> list[Finding]:
    """The fault of a decoder that is right token by token, but not several at a time, or not a second time."""
    in_threes = None
    with attempt() as attempted:
        in_threes, _ = (None, None) if decoder.whole else decoder.decode(inputs, 3)
    if type(attempted.error) is RuntimeError:
        witness = f"with a cache, steps of three tokens raise {attempted.sentence(100)}, while steps of one do not"
        return [finding((("K04", 0.9), ("K01", 0.1)), witness, where=decoder.subject.attention_place)]
    if attempted.error is not None:  # that it takes one token at a time is said
        raise attempted.error
    value = 0.0 if in_threes is None else float(_moved(in_threes, full).max())
    if value <= TOLERANCE:
        return []
    again, _ = decoder.decode(inputs, 1)
    if again is not None and float(_moved(again, full).max()) > TOLERANCE:
        witness = "decoded a second time with a new cache, the same rows have other logits"
        return [finding((("K06", 0.8), ("T08", 0.2)), witness, value=value, threshold=TOLERANCE)]
    where, _ = _blame(decoder, inputs, 3)
    witness = f"with a cache, steps of three tokens move logits by {value:.1e}, while steps of one do not"
    return [finding((("K04", 0.9), ("K01", 0.1)), witness, value=value, threshold=TOLERANCE, where=where)]


def _blame(decoder: CachedDecoder, inputs: Inputs, at_once: int) -> tuple[Where, Causes]:
    """Where the steps first depart from one call, and why."""
    first = departure(decoder, inputs, at_once)
    if first is not None:
        with attempt():  # what it holds may be laid out in another way
            return place_of_call(first.call), causes_of(decoder, first, at_once)
    return place_of_call(first.call if first else None), (("K01", 0.5), ("K02", 0.5))
