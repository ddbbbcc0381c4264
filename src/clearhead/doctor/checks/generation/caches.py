"""Decoding step by step gives what reading at once gives."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead.doctor.checks.base import Causes, Skipped, finding
from clearhead.doctor.checks.generation.decoding import causes_of, departure, place_of_call
from clearhead.doctor.conventions.calling import here
from clearhead.doctor.conventions.inputs import Inputs
from clearhead.doctor.conventions.names import CACHE, START, parameters_of
from clearhead.doctor.conventions.outputs import find_logits, follow, tensors
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Finding, Where

TOLERANCE = 1e-3  # of the logits' spread
NAMED = re.compile(r"past|cache|kv")
COUNTED = ("position_ids", "positions", "pos_ids")  # parameters by which a caller numbers the tokens
MAKERS = ("new_cache", "init_cache", "make_cache", "empty_cache", "create_cache")


class Decoder:
    """A model with a cache: the way in is a parameter, the way out a part of what it returns, or the same object."""

    def __init__(self, patient: Patient, parameter: str) -> None:
        self.patient, self.parameter = patient, parameter
        names = [p.name for p in parameters_of(patient.model)]
        self.more: dict[str, Any] = {"use_cache": True} if "use_cache" in names else {}
        self.counts: str | None = None  # the parameter that tells the numbers of the tokens, where it is given
        self.begins = next((name for name in names if START.search(name)), None)  # and that of the first of them

    def start(self, inputs: Inputs) -> Any:
        """What the first call is given."""
        rows, columns = inputs.ids.shape
        for name in MAKERS:
            make = getattr(self.patient.model, name, None)
            for arguments in ((rows, columns), (rows,), ()):
                if callable(make):
                    try:
                        return make(*arguments)
                    except TypeError:
                        continue
        return None

    def step(self, ids: Tensor, inputs: Inputs, cache: Any, begin: int) -> tuple[Tensor, Any]:
        """Logits of these tokens, the first of which has number `begin`, and the cache for the next."""
        convention, model = self.patient.convention, self.patient.model
        given = Inputs(ids, inputs.source)
        more = dict(self.more)
        if self.begins is not None:
            more[self.begins] = begin
        if self.counts is not None:
            more[self.counts] = torch.arange(begin, begin + ids.shape[1]).expand(ids.shape).clone()
        value = convention.raw(model, given, **{self.parameter: cache}, **more)
        path = find_logits(value, ids.shape[0], ids.shape[1], self.patient.found.vocab_size)
        if path is None:
            raise Skipped("with a cache it returns something else")
        logits = convention_arranged(here(follow(value, path), convention.device), ids)
        parts = list(_parts(value, path))
        return logits, parts[0] if parts else cache


def convention_arranged(logits: Tensor, ids: Tensor) -> Tensor:
    """(B, T, V)."""
    from clearhead.doctor.conventions.outputs import arrange

    arranged = arrange(logits, *ids.shape)
    assert arranged is not None
    return arranged


def _parts(value: Any, logits: tuple[str | int, ...]) -> Iterator[Any]:
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


def caches(patient: Patient) -> list[Finding]:
    """One token at a time behind a prefill, and two at a time."""
    names = [p.name for p in parameters_of(patient.model) if CACHE.search(p.name) and p.default is not p.empty]
    names = [name for name in names if not name.startswith(("use_", "return_", "cache_position", "cross", "encoder"))]
    names.sort(key=lambda name: not NAMED.search(name))  # a state may be of something else
    if not names:
        raise Skipped("it takes no cache")
    inputs = patient.inputs(2, salt=11)
    with torch.no_grad(), patient.quiet():
        full = patient.run(inputs)  # (B, T, V)
        spread = float(full.std()) or 1.0
        decoder, moved = _tried([Decoder(patient, name) for name in names], inputs, full, spread)
        patient.paths.append(f"cached by {decoder.parameter}")
        if float(moved.max()) > TOLERANCE and _is_right_with_positions(decoder, inputs, full, spread):
            witness = f"{_differ(moved)}, unless {decoder.counts} is given"
            return [finding("K01", witness, value=float(moved.max()), threshold=TOLERANCE, status="warn")]
        if float(moved.max()) > TOLERANCE:
            where, named = _blame(decoder, inputs, 1)
            return [finding(named, _differ(moved), value=float(moved.max()), threshold=TOLERANCE, where=where)]
        two = _decoded(decoder, inputs, 3)
        moved = torch.zeros(1) if two is None else (two - full).abs().amax((0, 2)) / spread
    if float(moved.max()) > TOLERANCE:
        witness = (
            f"three tokens at a time behind a cache move logits by {float(moved.max()):.1e}; one at a time is right"
        )
        with torch.no_grad(), patient.quiet():
            where, _ = _blame(decoder, inputs, 3)
        causes: Causes = (("K04", 0.9), ("K01", 0.1))
        return [finding(causes, witness, value=float(moved.max()), threshold=TOLERANCE, where=where)]
    return []


def _tried(decoders: Sequence[Decoder], inputs: Inputs, full: Tensor, spread: float) -> tuple[Decoder, Tensor]:
    """The first parameter by which decoding gives what one call gives, or else the first that holds anything.

    Returns:
        how to decode, and how far the logits of each place (T,) move.

    Raises:
        Skipped: none holds anything.
    """
    wrong: list[tuple[Decoder, Tensor]] = []
    problem: Exception = Skipped(f"'{decoders[0].parameter}' came back empty")
    for decoder in decoders:
        try:
            one = _decoded(decoder, inputs, 1)
        except Exception as error:
            problem = error if decoder is decoders[0] else problem
            continue
        if one is None:
            continue
        moved = (one - full).abs().amax((0, 2)) / spread  # (T,)
        if float(moved.max()) <= TOLERANCE:
            return decoder, moved
        wrong.append((decoder, moved))
    if not wrong:
        raise problem
    return wrong[0]


def _differ(moved: Tensor) -> str:
    place = int((moved > TOLERANCE).nonzero()[0])
    return f"logits {place} differ by {float(moved.max()):.1e} between one call and token by token"


def _is_right_with_positions(decoder: Decoder, inputs: Inputs, full: Tensor, spread: float) -> bool:
    """Whether it only leaves the counting to its caller."""
    names = [p.name for p in parameters_of(decoder.patient.model) if p.name in COUNTED]
    for name in names:
        decoder.counts = name
        try:
            one = _decoded(decoder, inputs, 1)
        except Exception:  # it wants them in another form
            one = None
        if one is not None and float((one - full).abs().max()) / spread <= TOLERANCE:
            return True
    decoder.counts = None
    return False


def _decoded(decoder: Decoder, inputs: Inputs, at_once: int) -> Tensor | None:
    T = inputs.ids.shape[1]
    begin = T // 2
    logits, cache = decoder.step(inputs.ids[:, :begin], inputs, decoder.start(inputs), 0)
    if cache is None or (isinstance(cache, (tuple, list)) and not tensors(cache) and not _has_state(cache)):
        return None
    made = [logits]
    for start in range(begin, T, at_once):
        logits, cache = decoder.step(inputs.ids[:, start : start + at_once], inputs, cache, start)
        made.append(logits)
    return torch.cat(made, dim=1)


def _has_state(cache: Any) -> bool:
    return any(hasattr(part, "__dict__") for part in cache)


def _blame(decoder: Decoder, inputs: Inputs, at_once: int) -> tuple[Where, Causes]:
    """Where the steps first depart from one call, and why."""
    prefill = inputs.ids.shape[1] // 2
    found = departure(decoder, inputs, prefill, at_once)
    if found is None:
        return Where(), (("K01", 0.5), ("K02", 0.5))
    try:
        causes = causes_of(decoder, inputs, found, prefill, at_once)
    except Exception:  # what it holds is laid out in another way
        causes = (("K01", 0.5), ("K02", 0.5))
    return place_of_call(found.call), causes
