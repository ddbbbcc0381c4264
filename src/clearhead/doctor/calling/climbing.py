"""The search for the call of a model that reads something else than rows of ids: the call that gets furthest is kept.

What each argument must be is learned from the model. A call that fails later than another was nearer to what the model
wants, so one argument after the other is given what lets it get furthest, and so are the length and number of rows. A
number in the message of an error is tried as a length and as a width.
"""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from clearhead.doctor.calling.convention import Convention
from clearhead.doctor.calling.inputs import Inputs, role_of
from clearhead.doctor.calling.lengths import length_of_source
from clearhead.doctor.calling.names import (
    CACHE,
    CONTAINER,
    FLAG,
    MASK,
    POSITIONS,
    SEGMENTS,
    START,
    fillers_of_aside,
    parameters_of,
)
from clearhead.doctor.calling.numbers import PLACES, form_of_width, forms_of, is_picture, numbers_of
from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.calling.trial import ROWS, drawn, with_output
from clearhead.doctor.problems import attempt

CALLS, SECONDS = 600, 6.0  # after which the search is given up
ROUNDS = 6  # through all arguments
PLAIN = ["zeros (B)", "halves (B)", "halves (B, 1)", "0", "1", "None", "False", "device"]  # what reads no tokens
OF_TYPES = {"bool": ["False", "True"], "int": ["0", "1", "2", "4"], "float": ["0.5", "1.0", "0"], "device": ["device"]}
OF_ROWS = re.compile(r"^(t|y|c|noise|sigma|cond|class\w*|labels?|time_?\w*|step\w*|index|users?(_ids?)?)$")


class Tried(NamedTuple):
    """How far a call came: the operations before an error, and whether it came to its end."""

    works: bool
    steps: int


class _Counter(TorchFunctionMode):
    """Counts the operations of a model, from the last call of it."""

    steps = 0

    def restart(self, *_: object) -> None:
        self.steps = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.steps += 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class CallAttempt:
    """Where the search is."""

    convention: Convention
    T: int
    S: int

    def filled(self, name: str, filler: str) -> "CallAttempt":
        """The same with something else for one argument."""
        call = tuple((other, filler if other == name else old) for other, old in self.convention.call)
        return replace(self, convention=replace(self.convention, call=call))


@dataclass
class Climb:
    """The search for one model. `problems`: what was raised, in the end the error of the best call."""

    model: nn.Module
    problems: list[str]
    lengths: Sequence[int]
    tried: dict[CallAttempt, Tried] = field(default_factory=dict)
    of_tokens: set[CallAttempt] = field(default_factory=set)
    begun: float = field(default_factory=time.process_time)
    messages: dict[CallAttempt, str] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether too much was tried already."""
        return len(self.tried) > CALLS or time.process_time() - self.begun > SECONDS

    def found(self, start: Convention) -> CallAttempt | None:
        """The way to call it that was climbed to from this one; None if none works."""
        forms = forms_of(self.model)
        best = CallAttempt(start, self.lengths[0], self.lengths[0])
        for _ in range(ROUNDS):
            before = best
            best = self._with_names(best)
            for name, _ in best.convention.call:
                best = self._better(best, (best.filled(name, filler) for filler in self._fillers(name, best, forms)))
                if self.try_(best).works:
                    return best
            best = self._better(best, (replace(best, T=T, S=T) for T in (*self._numbers(best), *self.lengths)))
            if self.try_(best).works:
                return best
            if best == before:
                best = self._better(best, self._in_parts(best))
                if self.try_(best).works or best == before or self.is_over:
                    break
        if not self.try_(best).works:
            self.problems.insert(0, self.messages[best])
            return None
        return best

    def _with_names(self, candidate: CallAttempt) -> CallAttempt:
        """With the names that a model that takes one dict looks up in it."""
        if not candidate.convention.as_dict:
            return candidate
        names = candidate.convention.requested(self.model, drawn(candidate.T, candidate.S))
        call = dict.fromkeys(names, "ids") | dict(candidate.convention.call)
        return replace(candidate, convention=replace(candidate.convention, call=tuple(call.items())))

    def _in_parts(self, candidate: CallAttempt) -> Iterator[CallAttempt]:
        """Fewer rows at a time, or one token."""
        if any(START.search(name) for name, _ in candidate.convention.call):
            yield replace(candidate, convention=replace(candidate.convention, stepwise=True))
        for count in (1, *self._numbers(candidate)):
            yield replace(candidate, convention=replace(candidate.convention, at_once=count))

    def _better(self, best: CallAttempt, others: Iterator[CallAttempt]) -> CallAttempt:
        """The first that works, or the one that gets furthest."""
        for other in others:
            if self.is_over:
                break
            if self.try_(other) > self.try_(best):
                best = other
            if self.try_(best).works:
                break
        return best

    def try_(self, candidate: CallAttempt) -> Tried:
        if candidate not in self.tried:
            pictures = {role_of(filler) for _, filler in candidate.convention.call if is_picture(filler)}
            T, S = PLACES if "ids" in pictures else candidate.T, PLACES if "source" in pictures else candidate.S
            inputs = drawn(T, S, rows=candidate.convention.at_once or ROWS)
            located, counter = None, _Counter()
            with (
                attempt() as attempted,
                torch.no_grad(),
                self.model.register_forward_pre_hook(counter.restart),
                counter,
            ):
                value = candidate.convention.raw(self.model, inputs)
            if attempted.failed:
                self.messages[candidate] = attempted.sentence()
            else:
                located = with_output(self.model, candidate.convention, inputs, value, None)
                located = located if located and _reads(self.model, located, inputs) else None
                shapes = [tuple(leaf.shape) for leaf in tensors(value)[:3]]
                self.messages[candidate] = f"given rows {(ROWS, T)} it returned {shapes or type(value).__name__}"
                if located is not None and located.gives == "tokens":
                    self.of_tokens.add(candidate)
            self.tried[candidate] = Tried(located is not None, counter.steps)
        return self.tried[candidate]

    def _numbers(self, candidate: CallAttempt) -> list[int]:
        """The numbers in the error of a call, and those that the model holds."""
        self.try_(candidate)
        numbers = [int(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.])", self.messages[candidate])]
        known = {ROWS, candidate.T, candidate.S, ROWS * candidate.T}
        return [n for n in dict.fromkeys((*numbers, *numbers_of(self.model))) if 1 < n <= 128 and n not in known]

    def _fillers(self, name: str, candidate: CallAttempt, forms: Sequence[str]) -> list[str]:
        """What an argument may be, the likeliest first."""
        parameter = next((p for p in parameters_of(self.model) if p.name == name), None)
        declared = str(parameter.annotation) if parameter and parameter.annotation is not parameter.empty else ""
        plain = next((values for word, values in OF_TYPES.items() if re.search(rf"\b{word}\b", declared)), [])
        if plain and "Tensor" not in declared:
            return plain
        numbers = [form for width in self._numbers(candidate)[:8] for form in form_of_width(width)]
        tokens = ["ids", *(f"ids{form}" for form in dict.fromkeys((*forms, *numbers)))]
        aside = fillers_of_aside(name) if any(k.search(name) for k in (MASK, POSITIONS, SEGMENTS, START)) else []
        first = PLAIN if OF_ROWS.search(name) else ()
        return list(dict.fromkeys((*aside, *first, *tokens, *PLAIN)))


def _reads(model: nn.Module, convention: Convention, inputs: Inputs) -> bool:
    """Whether other tokens move its outputs."""
    other = replace(inputs, ids=1 - inputs.ids)
    with attempt(), torch.no_grad():
        before, after = (convention.logits(model, batch) for batch in (inputs, other))
        return before.shape == after.shape and not torch.allclose(before, after, equal_nan=True)
    return False


def _unlike(climb: Climb, best: CallAttempt) -> CallAttempt:
    """With rows of another width, where that is free and the same as their length: an axis is numbers by its size."""
    same = [name for name, filler in best.convention.call if f" as {best.T} numbers" in filler]
    for width in (3, 7) if same else ():
        candidate = best
        for name in same:
            filler = dict(best.convention.call)[name]
            candidate = candidate.filled(name, filler.replace(f" as {best.T} ", f" as {width} "))
        if climb.try_(candidate).works:
            return candidate
    return best


def climbed(model: nn.Module, start: Convention, lengths: Sequence[int], problems: list[str]) -> Iterator[CallAttempt]:
    """Calls that work, the first found and its variants with other masks, and with a source where one may be."""
    parameters = parameters_of(model)
    names = [p.name for p in parameters if p.default is p.empty]
    optional = [p.name for p in parameters if p.default is None and not (CACHE.search(p.name) or FLAG.search(p.name))]
    calls = [tuple((name, "ids") for name in names)] if names else []
    if optional:
        calls.append((*((name, "ids") for name in names), *((name, "None") for name in optional[:4])))
    starts = [replace(start, call=call) for call in calls]
    if len(parameters) == 1 and CONTAINER.match(parameters[0].name):
        starts.append(replace(start, call=(), as_dict=True))
    climb = Climb(model, problems, lengths)
    for convention in (*starts, *(replace(start, at_once=1) for start in starts)):
        best = climb.found(convention)
        if best is None:
            continue
        best = _unlike(climb, best)
        yield from _with_source(climb, best)
        masks = [name for name, filler in best.convention.call if MASK.search(name) and filler != "None"]
        yield from (best.filled(name, filler) for name in masks for filler in fillers_of_aside(name))
        return


def _with_source(climb: Climb, best: CallAttempt) -> Iterator[CallAttempt]:
    """The first arguments may hold a source of another length."""
    data = [name for name, filler in best.convention.call if role_of(filler) == "ids"]
    for count in range(1, len(data)):
        candidate = replace(best, S=length_of_source(best.T, climb.model))
        for name in data[:count]:
            filler = dict(best.convention.call)[name]
            candidate = candidate.filled(name, "source" + filler.removeprefix("ids"))
        if climb.try_(candidate).works and candidate in climb.of_tokens:
            yield candidate
    yield best
