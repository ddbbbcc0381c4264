"""The same call with another size, of rows, of the numbers in them, of pictures; and with a source in it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from clearhead.doctor.calling.inputs import role_of
from clearhead.doctor.calling.names import TARGET, is_of_source
from clearhead.doctor.calling.numbers import PIXELS, has_sizes, is_picture
from clearhead.doctor.calling.trial import CallAttempt

LARGEST, LONGEST = 4096, 128  # size of an axis, and length of a row
NUMBER = re.compile(r"(?<![\d.a-wyz])-?\d+(?![\d.])")

Size = tuple[str, int]  # T or S; or the name of an argument, and which of the numbers in its filler


def filled(tried: CallAttempt, fillers: Mapping[str, str]) -> CallAttempt:
    """The same with something else for some arguments."""
    call = tuple((name, fillers.get(name, filler)) for name, filler in tried.convention.call)
    return replace(tried, convention=replace(tried.convention, call=call))


def with_sources(tried: CallAttempt) -> Iterator[CallAttempt]:
    """The first arguments may hold a source, and what is named after them its masks and positions."""
    data = [(name, filler) for name, filler in tried.convention.call if role_of(filler) == "ids"]
    data.sort(key=lambda call: bool(TARGET.search(call[0])))
    for count in range(1, len(data)):
        fillers = {name: "source" + filler.removeprefix("ids") for name, filler in data[:count]}
        roles = {name: role_of(fillers.get(name, filler)) for name, filler in data}
        asides = [call for call in tried.convention.call if call[1].startswith(("keep", "positions"))]
        fillers |= {name: f"source {filler}" for name, filler in asides if is_of_source(name, roles)}
        yield filled(tried, fillers)


def sizes_of(tried: CallAttempt) -> dict[Size, int]:
    """What of it has a size, and that."""
    pictures = any(is_picture(filler) for _, filler in tried.convention.call)
    sizes = {} if pictures else {("T", 0): tried.T}
    if tried.convention.has_source:
        sizes["S", 0] = tried.S
    for name, filler in tried.convention.call:
        if has_sizes(filler):
            sizes |= {(name, index): number for index, number in enumerate(numbers_in(filler))}
    return sizes


def spanned(tried: CallAttempt, spans: Mapping[int, Sequence[int]]) -> Iterator[CallAttempt]:
    """With pictures as high or as wide as a convolution spans."""
    for name, filler in tried.convention.call:
        count = len(numbers_in(filler))
        for axis, sizes in spans.items() if is_picture(filler) else ():
            starts = (with_size(tried, (name, count + axis), size) for size in sizes)
            yield from filter(None, starts)


def with_size(tried: CallAttempt, size: Size, value: int) -> CallAttempt | None:
    """The same with another size; None if it is too large, or too small."""
    what, index = size
    if not 1 <= value <= LARGEST:
        return None
    if what in ("T", "S"):
        lengths = {"T": tried.T, "S": tried.S} | {what: value}
        return replace(tried, T=lengths["T"], S=lengths["S"]) if 1 < value <= LONGEST else None
    filler = dict(tried.convention.call)[what]
    numbers = numbers_in(filler)
    numbers[index] = value
    order = iter(numbers)
    return filled(tried, {what: NUMBER.sub(lambda _: str(next(order)), filler)}) if prod(numbers) <= PIXELS else None


def numbers_in(text: str) -> list[int]:
    return [int(number) for number in NUMBER.findall(text)]


def template_of(message: str) -> str:
    return NUMBER.sub("#", message)


def led_to(number: int, bases: Sequence[int]) -> Iterator[int]:
    """What it may have to become: one of the bases, or the multiple of it that is next."""
    for base in dict.fromkeys(bases):
        yield base
        if base < number and number % base:
            yield round(number / base) * base
