"""Decoding step by step gives what reading at once gives."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead.doctor.calling.convention import here
from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import CACHE, START, parameters_of
from clearhead.doctor.calling.outputs import find_logits, follow, tensors
from clearhead.doctor.checks.base import SOUND, Causes, Skipped, finding, model_check
from clearhead.doctor.checks.generation.decoding import causes_of, departure
from clearhead.doctor.checks.generation.stores import Make, stores
from clearhead.doctor.probes.dependency import change_of
from clearhead.doctor.probes.locations import place_of_call
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding, Where
from clearhead.doctor.state_guard import twin
from clearhead.doctor.subject import Subject

TOLERANCE = 1e-3  # of the logits' spread
NAMED = re.compile(r"past|cache|kv")
COUNTED = ("position_ids", "positions", "pos_ids")  # parameters by which a caller numbers the tokens
INSIDE = "inside"  # stands for a cache in the model's own buffers
MAKERS = ("new_cache", "init_cache", "make_cache", "empty_cache", "create_cache")


class CachedDecoder:
    """A model with a cache: the way in is a parameter, the way out a part of what it returns, or the same object.

    Args:
        parameter: takes the cache; none where the model keeps it inside and is told where tokens begin.
        make: an empty cache; without it the model makes its own.
    """

    def __init__(self, subject: Subject, parameter: str | None, make: Make | None = None) -> None:
        self.subject, self.parameter, self.make = subject, parameter, make
        names = [p.name for p in parameters_of(subject.model)]
        self.more: dict[str, object] = {"use_cache": True} if "use_cache" in names else {}
        self.counts: str | None = None  # the parameter that tells the numbers of the tokens, where it is given
        self.begins = next((name for name in names if START.search(name)), None)  # and that of the first of them

    def start(self, inputs: Inputs) -> object:
        """What the first call is given."""
        if self.parameter is None:
            return INSIDE
        if self.make is not None:
            return self.make(inputs)
        rows, columns = inputs.ids.shape
        for name in MAKERS:
            make = getattr(self.subject.model, name, None)
            for arguments in ((rows, columns), (rows,), ()):
                if callable(make):
                    try:
                        return make(*arguments)
                    except TypeError:
                        continue
        return None

    def step(self, ids: Tensor, inputs: Inputs, cache: object, begin: int) -> tuple[Tensor, object]:
        """Logits of these tokens, the first of which has number `begin`, and the cache for the next."""
        convention, model = self.subject.convention, self.subject.model
        batch = Inputs(ids, inputs.source, source_keep=inputs.source_keep)
        more = dict(self.more)
        if self.begins is not None:
            more[self.begins] = begin
        if self.counts is not None:
            more[self.counts] = torch.arange(begin, begin + ids.shape[1]).expand(ids.shape).clone()
        if self.parameter is not None:
            more[self.parameter] = cache
        value = convention.raw(model, batch, **more)
        path = find_logits(value, ids.shape[0], ids.shape[1], self.subject.calling.vocab_size)
        if path is None:
            raise Skipped("with a cache it returns something else")
        logits = convention_arranged(here(follow(value, path), convention.device), ids)
        parts = list(_parts(value, path))
        return logits, parts[0] if parts else cache


def convention_arranged(logits: Tensor, ids: Tensor) -> Tensor:
    """(B, T, V)."""
    from clearhead.doctor.calling.outputs import arrange

    arranged = arrange(logits, *ids.shape)
    assert arranged is not None
    return arranged


def _parts(value: object, logits: tuple[str | int, ...]) -> Iterator[object]:
    """What stands beside the logits and could be a cache."""
    if isinstance(value, dict):
        parts = [(key, part) for key, part in value.items() if CACHE.search(str(key))]
    elif isinstance(value, (tuple, list)):
        parts = list(enumerate(value))
    elif isinstance(value, Tensor):
        parts = []
    else:
        parts = [(key, part) for key, part in vars(value).items() if CACHE.search(key)]
    for key, part in parts:
        if (not logits or key != logits[0]) and part is not None:
            if isinstance(part, Tensor) and part.dim() < 3:
                continue
            yield part


@model_check(
    "K01",
    "caches",
    order=200,
    covers=("K01", "K02", "K03", "K04", "K06", "M16", "S01", "T08"),
    holds="token by token, and three at a time, the logits with the cache are those without it",
    needs=SOUND,
    of_tokens=True,
)
def caches(subject: Subject) -> list[Finding]:
    """One token at a time behind a prefill, and two at a time."""
    names = [p.name for p in parameters_of(subject.model) if CACHE.search(p.name) and p.default is not p.empty]
    names = [name for name in names if not name.startswith(("use_", "return_", "cache_position", "cross", "encoder"))]
    names.sort(key=lambda name: not NAMED.search(name))  # a state may be of something else
    if not names:
        subject = replace(subject, model=twin(subject.model))  # the calls fill its buffers
    inside = CachedDecoder(subject, None)
    if not names and inside.begins is None:
        raise Skipped("it takes no cache")
    inputs = subject.inputs(2, salt=11)
    with torch.no_grad(), subject.quiet():
        full = subject.run(inputs)  # (B, T, V)
        spread = float(full.std()) or 1.0
        if names:
            decoder, moved = _tried(_decoders(subject, names), inputs, full, spread)
        else:
            decoder, moved = _kept_inside(inside, inputs, full, spread)
        subject.journal.paths.append(f"cached by {decoder.parameter or decoder.begins}")
        findings = _judged(decoder, moved, inputs, full, spread)
        return findings or _with_padded_source(decoder)


def _decoders(subject: Subject, names: Sequence[str]) -> Iterator[CachedDecoder]:
    """Every parameter with a cache of the model's own making, then with one that the caller makes."""
    yield from (CachedDecoder(subject, name) for name in names)
    yield from (CachedDecoder(subject, name, make) for make in stores(subject) for name in names)


def _kept_inside(decoder: CachedDecoder, inputs: Inputs, full: Tensor, spread: float) -> tuple[CachedDecoder, Tensor]:
    """Decoding with a model that keeps its past in buffers.

    Raises:
        Skipped: it keeps none: what was read before moves nothing.
    """
    begin = inputs.ids.shape[1] // 2
    after = []
    for ids in (inputs.ids, inputs.ids.flip(0)):
        decoder.step(ids[:, :begin], inputs, INSIDE, 0)
        after.append(decoder.step(inputs.ids[:, begin : begin + 1], inputs, INSIDE, begin)[0])
    if float((after[1] - after[0]).abs().max()) <= TOLERANCE * spread:
        raise Skipped(f"told by '{decoder.begins}' where tokens begin, it remembers none before")
    return _tried([decoder], inputs, full, spread)


def _judged(decoder: CachedDecoder, moved: Tensor, inputs: Inputs, full: Tensor, spread: float) -> list[Finding]:
    """What it says of a model that its logits move, one token at a time (T,), or several, or in the next request."""
    if float(moved.max()) > TOLERANCE and _is_right_with_positions(decoder, inputs, full, spread):
        witness = f"{_differ(moved)}, unless {decoder.counts} is given"
        return [finding("K01", witness, value=float(moved.max()), threshold=TOLERANCE, status="warn")]
    if float(moved.max()) > TOLERANCE:
        where, named = _blame(decoder, inputs, 1)
        return [finding(named, _differ(moved), value=float(moved.max()), threshold=TOLERANCE, where=where)]
    two = _decoded(decoder, inputs, 3)
    moved = torch.zeros(1) if two is None else (two - full).abs().amax((0, 2)) / spread
    if float(moved.max()) <= TOLERANCE:
        return []
    again = _decoded(decoder, inputs, 1)
    if again is not None and float((again - full).abs().max()) > TOLERANCE * spread:
        witness = "decoded a second time, with a new cache, the same rows have other logits"
        return [finding((("K06", 0.8), ("T08", 0.2)), witness, value=float(moved.max()), threshold=TOLERANCE)]
    where, _ = _blame(decoder, inputs, 3)
    witness = f"three tokens at a time behind a cache move logits by {float(moved.max()):.1e}; one at a time is right"
    causes: Causes = (("K04", 0.9), ("K01", 0.1))
    return [finding(causes, witness, value=float(moved.max()), threshold=TOLERANCE, where=where)]


def _with_padded_source(decoder: CachedDecoder) -> list[Finding]:
    """Padding of a source is hidden from every step as it is from one call."""
    inputs = _padded_behind_source(decoder.subject)
    if inputs is None:
        return []
    full = decoder.subject.run(inputs)
    stepped = _decoded(decoder, inputs, 1)
    moved = 0.0 if stepped is None else change_of(full, stepped)
    decoder.subject.journal.paths.append("cached, behind a padded source")
    if not moved > TOLERANCE:
        return []
    where, _ = _blame(decoder, inputs, 1)
    witness = f"where a source is padded logits differ by {moved:.1e} between one call and token by token; else by none"
    return [finding((("K01", 0.6), ("S01", 0.4)), witness, value=moved, threshold=TOLERANCE, where=where)]


def _padded_behind_source(subject: Subject) -> Inputs | None:
    """Two rows, of which one has padding behind its source; None where nothing would tell it from words."""
    inputs = subject.inputs(2, salt=11)
    masked = any(filler.startswith("source keep") for _, filler in subject.convention.call)
    if inputs.source is None or not (masked or subject.pad_id is not None):
        return None
    keep = torch.ones_like(inputs.source, dtype=torch.bool)
    keep[1, -max(1, keep.shape[1] // 3) :] = False
    pad = subject.pad_id
    if pad is None or pad >= subject.calling.source_vocab_size:  # the target's may be no word of the source
        return replace(inputs, source_keep=keep)
    source = inputs.source.masked_fill(~keep, pad)
    return replace(inputs, source=source, source_keep=keep)


def _tried(
    decoders: Iterable[CachedDecoder], inputs: Inputs, full: Tensor, spread: float
) -> tuple[CachedDecoder, Tensor]:
    """The first parameter by which decoding gives what one call gives, or else the first that holds anything.

    Returns:
        how to decode, and how far the logits of each place (T,) move.

    Raises:
        Skipped: none holds anything.
    """
    wrong: list[tuple[CachedDecoder, Tensor]] = []
    problem: Exception | None = None
    for decoder in decoders:
        with attempt() as attempted:
            stepped = _decoded(decoder, inputs, 1)
        if attempted.failed:
            problem = problem or attempted.error
            continue
        if stepped is None:
            problem = problem or Skipped(f"'{decoder.parameter}' came back empty")
            continue
        moved = (stepped - full).abs().amax((0, 2)) / spread  # (T,)
        if float(moved.max()) <= TOLERANCE:
            return decoder, moved
        wrong.append((decoder, moved))
    if not wrong:
        raise problem or Skipped("it takes no cache")
    return wrong[0]


def _differ(moved: Tensor) -> str:
    position = int((moved > TOLERANCE).nonzero()[0])
    return f"logits {position} differ by {float(moved.max()):.1e} between one call and token by token"


def _is_right_with_positions(decoder: CachedDecoder, inputs: Inputs, full: Tensor, spread: float) -> bool:
    """Whether it only leaves the counting to its caller."""
    names = [p.name for p in parameters_of(decoder.subject.model) if p.name in COUNTED]
    for name in names:
        decoder.counts = name
        stepped = None
        with attempt():  # it may want them in another form
            stepped = _decoded(decoder, inputs, 1)
        if stepped is not None and float((stepped - full).abs().max()) / spread <= TOLERANCE:
            return True
    decoder.counts = None
    return False


def _decoded(decoder: CachedDecoder, inputs: Inputs, at_once: int) -> Tensor | None:
    T = inputs.ids.shape[1]
    begin = T // 2
    logits, cache = decoder.step(inputs.ids[:, :begin], inputs, decoder.start(inputs), 0)
    if cache is None or (isinstance(cache, (tuple, list)) and not tensors(cache) and not _has_state(cache)):
        return None
    outputs = [logits]
    for start in range(begin, T, at_once):
        logits, cache = decoder.step(inputs.ids[:, start : start + at_once], inputs, cache, start)
        outputs.append(logits)
    return torch.cat(outputs, dim=1)


def _has_state(cache: Any) -> bool:
    return any(hasattr(part, "__dict__") for part in cache)


def _blame(decoder: CachedDecoder, inputs: Inputs, at_once: int) -> tuple[Where, Causes]:
    """Where the steps first depart from one call, and why."""
    prefill = inputs.ids.shape[1] // 2
    first = departure(decoder, inputs, prefill, at_once)
    if first is None:
        return Where(), (("K01", 0.5), ("K02", 0.5))
    causes: Causes = (("K01", 0.5), ("K02", 0.5))
    with attempt():  # what it holds may be laid out in another way
        causes = causes_of(decoder, inputs, first, prefill, at_once)
    return place_of_call(first.call), causes
