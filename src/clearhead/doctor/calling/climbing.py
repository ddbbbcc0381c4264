"""The search for the call of a model that reads something else than rows of ids: the call that gets furthest is kept.

What each argument must be is learned from the model. A call that fails later than another was nearer to what the model
wants, so one argument after the other is given what lets it get furthest, and so are the length and number of rows. And
a size that the model is given is changed: the number in the error that follows it is led to the one that does not.
"""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, product

from torch import nn

from clearhead.doctor.calling.convention import Convention
from clearhead.doctor.calling.inputs import PLAIN, TOKENS, role_of
from clearhead.doctor.calling.lengths import is_width, length_of_source, lengths_near
from clearhead.doctor.calling.names import (
    CACHE,
    CONTAINER,
    FLAG,
    MASK,
    OF_ROWS,
    OF_TYPES,
    START,
    fillers_of_aside,
    is_aside,
    is_positive,
    likeliest,
    parameters_of,
    signature_of,
)
from clearhead.doctor.calling.numbers import form_of_width, forms_of, lengths_told, numbers_of, spans_of
from clearhead.doctor.calling.sizes import (
    LARGEST,
    LONGEST,
    Size,
    filled,
    led_to,
    numbers_in,
    sizes_of,
    spanned,
    template_of,
    with_size,
    with_sources,
)
from clearhead.doctor.calling.trial import BLIND, ROWS, Altimeter, CallAttempt, Height, Outcome, WorkingCall, try_call

CALLS, OPERATIONS, SECONDS = 2000, 200_000, 60.0  # after which the search is given up
ROUNDS, STEPS = 6, 4  # through all arguments, and towards a size
SHALLOW, NAMES = 8, 12  # modules in one call of a model, and names in a dict


@dataclass
class Climb:
    """The search for one model. `lengths` of rows are tried. `blind`: a call of a deep model that nothing moves."""

    model: nn.Module
    lengths: Sequence[int]
    outcomes: dict[CallAttempt, tuple[Height, Outcome]] = field(default_factory=dict)
    operations: int = 0
    begun: float = field(default_factory=time.process_time)
    blind: WorkingCall | None = None

    @cached_property
    def forms(self) -> list[str]:
        """The forms of numbers that its layers may read."""
        return forms_of(self.model)

    @property
    def is_over(self) -> bool:
        """Whether too much was tried already."""
        is_late = time.process_time() - self.begun > SECONDS  # each call may be long
        return len(self.outcomes) > CALLS or self.operations > OPERATIONS or is_late

    def height(self, tried: CallAttempt) -> Height:
        """How far this call comes."""
        if tried not in self.outcomes:
            altimeter = Altimeter(self.model)
            outcome = try_call(self.model, tried, altimeter, reads=True)
            self.operations += altimeter.operations
            height = Height(not outcome.message, altimeter.modules, altimeter.steps)
            if outcome.message == BLIND:
                self.blind = self.blind or (outcome.known if altimeter.modules > SHALLOW else None)
                height = Height(False, -1, 0)
            self.outcomes[tried] = height, outcome
        return self.outcomes[tried][0]

    def message(self, tried: CallAttempt) -> str:
        """Why this call does not work."""
        self.height(tried)
        return self.outcomes[tried][1].message

    def climbed(self, start: CallAttempt) -> CallAttempt:
        """The call that gets furthest from this one on."""
        best = self._better(start, self._of_other_lengths(start))
        for _ in range(ROUNDS):
            before, best = best, self._with_names(best)
            for name, _ in best.convention.call:
                best = self._better(best, self._refilled(best, name))
            for moves in (self._in_parts, self._of_other_lengths, self._alike, self._resized, self._level):
                best = self._better(best, moves(best))
                if best != before:
                    break
            if best == before or self.is_over:
                break
        return best

    def _better(self, best: CallAttempt, others: Iterable[CallAttempt]) -> CallAttempt:
        """The first that works, or the one that gets furthest."""
        for other in others:
            if self.height(best).works or self.is_over:
                break
            is_apt = other.holds_tokens or not best.holds_tokens
            if is_apt and self.height(other) > self.height(best):
                best = other
        return best

    def _with_names(self, tried: CallAttempt) -> CallAttempt:
        """With the names that the model looks up in the dicts that it takes."""
        convention = tried.convention
        for _ in range(NAMES if convention.dicts else 0):
            names = convention.requested(self.model, tried.inputs).items()
            fillers = {name: "None" if optional else likeliest(name) for name, optional in names}
            call = tuple((fillers | dict(convention.call)).items())
            if call == convention.call:
                break
            convention = replace(convention, call=call)
        return replace(tried, convention=convention)

    def _with_dict(self, tried: CallAttempt, name: str) -> Iterator[CallAttempt]:
        """With a dict for one argument, if the model looks up names in it."""
        convention, call = tried.convention, tuple(part for part in tried.convention.call if part[0] != name)
        inner = "" if name in (parameter.name for parameter in parameters_of(self.model)) else "."
        other = replace(tried, convention=replace(convention, call=call, dicts=(*convention.dicts, inner + name)))
        if (known := self._with_names(other)) != other or inner:
            yield known

    def _refilled(self, tried: CallAttempt, name: str) -> Iterator[CallAttempt]:
        """With everything else that one argument may be, the likeliest first."""
        parameter = next((p for p in parameters_of(self.model) if p.name == name), None)
        if (parameter or tried.convention.dicts) and name not in tried.convention.dicts:
            yield from self._with_dict(tried, name)
        declared = str(parameter.annotation) if parameter and parameter.annotation is not parameter.empty else ""
        plain = next((values for word, values in OF_TYPES.items() if re.search(rf"\b{word}\b", declared)), [])
        if not plain or "Tensor" in declared:
            aside = fillers_of_aside(name) if is_aside(name) else []
            tokens = self._tokens(tried)
            rows = (f"numbers (B, {form.split()[2]})" for form in tokens if form.endswith(" numbers"))
            plain = [*aside, *(PLAIN if OF_ROWS.search(name) else ()), *tokens, *rows, *PLAIN, "text"]
        yield from (filled(tried, {name: filler}) for filler in dict.fromkeys(plain))

    def _tokens(self, tried: CallAttempt) -> list[str]:
        """The forms in which it may read tokens."""
        widths = self._numbers(tried)[:8]
        numbers = dict.fromkeys((*self.forms, *(form for width in widths for form in form_of_width(width))))
        several = (f"ids as {width} ids{turned}" for width in widths for turned in ("", " in rows"))
        return [*TOKENS[:1], *(f"ids{form}" for form in numbers), *TOKENS[1:], *several]

    def _alike(self, tried: CallAttempt) -> Iterator[CallAttempt]:
        """All that holds tokens in one form; or with time first."""
        names = [name for name, filler in tried.convention.call if role_of(filler) == "ids"]
        masks = [name for name, filler in tried.convention.call if filler.startswith("causal: ")]
        for form in self._tokens(tried) if len(names) > 1 else ():
            yield filled(tried, dict.fromkeys(names, form))
            yield filled(tried, dict.fromkeys(names, form) | dict.fromkeys(masks, "keep: True drops"))
        yield replace(tried, convention=replace(tried.convention, time_first=not tried.convention.time_first))

    def _of_other_lengths(self, tried: CallAttempt) -> Iterator[CallAttempt]:
        """With rows of other lengths; also with a source of one length, and ids of another."""
        numbers = self._numbers(tried)
        yield from (replace(tried, T=T, S=T) for T in (*numbers, *self.lengths) if T <= LONGEST)
        for variant in with_sources(tried):
            yield from (replace(variant, T=T, S=S) for S, T in product(numbers[:6], repeat=2) if max(S, T) <= LONGEST)

    def _in_parts(self, tried: CallAttempt) -> Iterator[CallAttempt]:
        """Fewer rows at a time."""
        for count in (1, *self._numbers(tried)[:8]):
            yield replace(tried, convention=replace(tried.convention, at_once=count))

    def _numbers(self, tried: CallAttempt) -> list[int]:
        """The numbers in the error of a call, and those that the model holds."""
        numbers = numbers_in(self.message(tried))
        known = {ROWS, tried.T, tried.S, ROWS * tried.T}
        return [n for n in dict.fromkeys((*numbers, *numbers_of(self.model))) if 1 < n <= LARGEST and n not in known]

    def _resized(self, tried: CallAttempt) -> Iterator[CallAttempt]:
        """With one size changed: larger or smaller, and so that a number in the error becomes another one there.

        A second is then what a convolution spans: one that sees all of an axis, such as the channels of a recording.
        """
        for start in (*spanned(tried, spans_of(self.model)), tried):
            yield start
            for size, value in sizes_of(start).items():
                for probe in {2 * value, value + 1, value // 2}:
                    other = with_size(start, size, probe)
                    if other is not None:
                        yield other
                        yield from self._led(start, other, size, (value, probe))

    def _level(self, tried: CallAttempt) -> Iterator[CallAttempt]:
        """The same from calls that came as far as this one, and of which every one ended otherwise."""
        others = {template_of(self.message(tried)): tried}
        for other, (height, outcome) in self.outcomes.items():
            if height == self.height(tried) and other.convention.at_once == tried.convention.at_once:
                others.setdefault(template_of(outcome.message), other)
        for other in islice(others.values(), 1, 6):
            yield from self._resized(other)

    def _led(
        self, tried: CallAttempt, other: CallAttempt, size: Size, values: tuple[int, int]
    ) -> Iterator[CallAttempt]:
        """From two values of a size: those at which a number in the error that they move is one that they do not."""
        first, second = (numbers_in(self.message(tried)) for tried in (tried, other))
        if template_of(self.message(tried)) != template_of(self.message(other)):
            return
        fixed = [a for a, b in zip(first, second, strict=True) if a == b and a > 1 and a != ROWS]
        for index, (a, b) in enumerate(zip(first, second, strict=True)):
            for target in led_to(a, fixed) if a != b else ():
                (v, g), (w, h) = zip(values, (a, b), strict=True)
                for _ in range(STEPS):
                    if g == h:
                        break
                    v, g, w = w, h, round(w + (target - h) * (w - v) / (h - g))
                    candidate = with_size(tried, size, w)
                    if candidate is None:
                        break
                    yield candidate
                    message = self.message(candidate)
                    if template_of(message) != template_of(self.message(tried)):
                        break
                    h = numbers_in(message)[index]


def climbed(model: nn.Module, start: Convention, lengths: Sequence[int], problems: list[str]) -> Iterator[WorkingCall]:
    """Calls that work, the first found and its variants with other masks, and with a source where one may be.

    Where there is none, `problems` begins with what the one that came furthest was given, and why it does not work.
    """
    climb = Climb(model, lengths)
    highest: CallAttempt | None = None
    for attempt in _starts(climb, start):
        best = climb.climbed(attempt)
        if climb.height(best).works:
            whole = replace(best, convention=replace(best.convention, at_once=0, unbatched=False))
            best = whole if climb.height(whole).works else best
            for variant in _variants(climb, best):
                if climb.height(variant).works and (known := climb.outcomes[variant][1].known):
                    yield known
            return
        if highest is None or climb.height(best) > climb.height(highest):
            highest = best
    if climb.blind is not None:
        yield climb.blind
    else:
        message = climb.message(highest) if highest else "nothing it returned has the shape of logits"
        problems.insert(0, f"with {highest.convention.reads if highest else 'token ids'} ({message[:160]})")


def _starts(climb: Climb, start: Convention) -> Iterator[CallAttempt]:
    """Ids for all that is required, with and without what may be left out, or in one dict; short ones, and in parts."""
    parameters = parameters_of(climb.model)
    names = [p.name for p in parameters if p.default is p.empty]
    required = [(name, "ones like ids" if is_positive(name, names) else likeliest(name)) for name in names]
    optional = [p.name for p in parameters if p.default is None and not (CACHE.search(p.name) or FLAG.search(p.name))]
    of_rows = {name: "zeros (B)" for name, filler in required if filler == "ids" and OF_ROWS.search(name)}
    if not required and any(p.kind is p.VAR_POSITIONAL for p in signature_of(climb.model)):
        required = [("*0", "ids"), ("*1", "ids")]
    calls = [tuple(required), (*required, *((name, "None") for name in optional[:4]))]
    if len(of_rows) < sum(filler == "ids" for _, filler in required):
        calls.insert(0, tuple((name, of_rows.get(name, filler)) for name, filler in required))
    starts = [replace(start, call=call) for call in dict.fromkeys(calls) if call]
    if len(parameters) == 1 and CONTAINER.match(parameters[0].name):
        starts.append(replace(start, call=(), dicts=(parameters[0].name,)))
    T = (*lengths_told(climb.model), *climb.lengths)[0]
    stepwise = (replace(start, stepwise=True) for start in starts if any(START.search(name) for name, _ in start.call))
    yield from (CallAttempt(start, T, T) for start in (*stepwise, *starts))
    short = min(climb.lengths[:4])
    yield from (CallAttempt(start, short, short) for start in starts if short != T)
    for unbatched in (False, True):
        yield from (CallAttempt(replace(start, at_once=1, unbatched=unbatched), T, T) for start in starts)


def _variants(climb: Climb, best: CallAttempt) -> Iterator[CallAttempt]:
    """The call with rows of another length or width where that is free, with a source, and with other masks."""
    lengths = [] if best.T in climb.lengths[:2] else [*climb.lengths[:2]]
    lengths += lengths_near(climb.model, best.T) if is_width(climb.model, best.T) else []
    others = [replace(best, T=T, S=T) for T in lengths if T <= LONGEST]
    fixed = {name: f"numbers (B, {best.T})" for name, filler in best.convention.call if filler == "ids as 0 numbers"}
    others += [other for other in (filled(other, fixed) for other in others) if fixed and other.holds_tokens]
    best = _unlike(climb, next((other for other in others if climb.height(other).works), best))
    order = best.convention.time_first
    for variant, time_first in product(with_sources(best), (order, not order)):
        convention = replace(variant.convention, time_first=time_first)
        candidate = replace(variant, S=length_of_source(best.T, climb.model), convention=convention)
        known = climb.outcomes[candidate][1].known if climb.height(candidate).works else None
        if known is not None and known.convention.gives == "tokens":
            yield candidate
    yield best
    masks = [name for name, filler in best.convention.call if MASK.search(name) and filler != "None"]
    yield from (filled(best, {name: filler}) for name in masks for filler in fillers_of_aside(name))


def _unlike(climb: Climb, best: CallAttempt) -> CallAttempt:
    """With rows of another width, where that is free and the same as their length: an axis is numbers by its size."""
    fillers = {name: filler for name, filler in best.convention.call if f" as {best.T} numbers" in filler}
    for width in (3, 7) if fillers else ():
        narrow = {name: filler.replace(f" as {best.T} ", f" as {width} ") for name, filler in fillers.items()}
        if climb.height(filled(best, narrow)).works:
            return filled(best, narrow)
    data = {name: filler for name, filler in best.convention.call if role_of(filler) == "ids"}
    widths = {numbers_in(filler)[0] for filler in data.values() if filler.endswith(" numbers in rows")}
    if len(widths) == 1 and not any(isinstance(module, nn.Conv1d) for module in climb.model.modules()):
        T = widths.pop()  # (B, width, T) without a convolution is rather time and then channels
        other = filled(replace(best, T=T, S=T), dict.fromkeys(data, f"ids as {best.T} numbers"))
        return other if climb.height(other).works else best
    return best
