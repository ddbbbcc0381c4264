"""Sizes of axes by their symbols, as 'B', 'H*K', 'H/H_kv*T', 'T+2' or 'K/2': measured, written and read again."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

Sizes = Mapping[str, int]

ORDER = ("B", "H", "H_kv", "H/H_kv", "T", "T_src", "K", "R", "D", "d_ff", "V")
GROUP = "H/H_kv"  # query heads that share a key head; no axis of its own
LENGTHS = ("T", "T_src")
MOST_ADDED = 9  # tokens beside T, as n-gram tables put there
TOKEN = re.compile(r"[*/+-]|\w+")


def size_of(axis: str, sizes: Sizes) -> int:
    """The number that an axis has with these sizes.

    Raises:
        ValueError: with these sizes it is no whole number.
    """
    total, term, sign, operator = Fraction(0), Fraction(0), 1, "+"
    for token in TOKEN.findall(axis):
        if token in "*/+-":
            operator = token
            continue
        value = Fraction(int(token) if token.isdecimal() else sizes[token])
        if operator in "+-":
            total, term, sign = total + sign * term, value, 1 if operator == "+" else -1
        else:
            term = term * value if operator == "*" else term / value
    total += sign * term
    if total.denominator != 1:
        raise ValueError(f"{axis} is {total}, no size")
    return int(total)


def symbols_in(axis: str) -> set[str]:
    """The symbols that an axis mentions."""
    return {token for token in TOKEN.findall(axis) if token not in "*/+-" and not token.isdecimal()}


@dataclass(frozen=True)
class Scale:
    """What reads a symbol off a number: sizes whose largest prime factors all differ.

    Args:
        sizes: of the symbols, in the model in which the numbers are measured.
        primes: of each symbol its own prime; that of `GROUP` is how many query heads share a key head.
    """

    sizes: Sizes
    primes: Sizes = field(default_factory=dict)

    def read(self, number: int, other: int, others: Sizes) -> str:
        """The symbol of an axis that has `number` here, and `other` in the same model with other sizes.

        The number itself where it is the same in both and no symbol fits both; `other` where nothing fits.
        """
        for axis in self._candidates(number):
            if _fits(axis, other, others):
                return axis
        return str(other)

    def read_alone(self, number: int) -> str:
        """The same where there is no other model to compare with: the likeliest symbol, else the number."""
        return next(self._candidates(number), str(number))

    def _candidates(self, number: int) -> Iterator[str]:
        products = list(dict.fromkeys(_written(*self._divided(number, apart)) for apart in (False, True)))
        plain = [product for product in products if not product[0].isdecimal()]
        yield from plain
        for name in LENGTHS:
            added = number - self.sizes.get(name, 0)
            if name in self.sizes and 0 < abs(added) <= MOST_ADDED:
                yield f"{name}{added:+d}"
        if "R" in self.sizes and number == self.sizes["K"] - self.sizes["R"]:
            yield "K-R"
        yield from (product for product in products if product not in plain and symbols_in(product))

    def _divided(self, number: int, apart: bool) -> tuple[list[str], Fraction]:
        """The symbols whose primes divide it, and the factor that is left.

        `apart`: the number of query heads that share a key head is only a factor.
        """
        names: list[str] = []
        rest, factor = number, Fraction(1)
        for name, prime in self.primes.items():
            while rest and rest % prime == 0:
                rest //= prime
                names.append(name)
                factor *= Fraction(prime, self.sizes.get(name, prime))
        while GROUP in names and "H_kv" in names:
            names.remove(GROUP)
            names.remove("H_kv")
            names.append("H")
        while GROUP in names and (apart or not set(names) & set(LENGTHS)):  # it stands beside a length only
            names.remove(GROUP)
            rest *= self.primes[GROUP]
        return sorted(names, key=ORDER.index), factor * rest


def _written(names: Sequence[str], factor: Fraction) -> str:
    over = "" if factor.denominator == 1 else f"/{factor.denominator}"
    return "*".join([*([] if factor.numerator == 1 and names else [str(factor.numerator)]), *names]) + over


def _fits(axis: str, number: int, sizes: Sizes) -> bool:
    try:
        return size_of(axis, sizes) == number
    except (ValueError, KeyError, ZeroDivisionError):
        return False


@dataclass(frozen=True)
class TwoPasses:
    """What names the axes of a model of which nothing is known but what it was given, in two passes of other sizes.

    Args:
        sizes, others: of the symbols B, T and T_src in the first pass and in the second; what could not be varied is
            unlike other sizes.
        vocab_size: V, if no other size of the model is the same number.
    """

    sizes: Sizes
    others: Sizes
    vocab_size: int | None = None

    def read(self, number: int, other: int) -> str:
        """The symbol of an axis that has `number` in the first pass and `other` in the second; or the number."""
        if number == other:
            fixed = (name for name, size in self.sizes.items() if size == number == self.others[name] > 1)
            return "V" if number == self.vocab_size else next(fixed, str(number))
        for axis in self._candidates(number):
            if _fits(axis, number, self.sizes) and _fits(axis, other, self.others):
                return axis
        return str(number)

    def _candidates(self, number: int) -> Iterator[str]:
        names = [name for name in ("B", "T", "T_src") if name in self.sizes]
        lengths = [name for name in LENGTHS if name in self.sizes]
        products = [*names, *(f"B*{name}" for name in lengths), *(f"{name}*{name}" for name in lengths)]
        products += [f"B*{name}*{name}" for name in lengths]
        yield from products
        for name in products:
            share = Fraction(number, size_of(name, self.sizes))
            if 1 < share.numerator <= 4096 and share.denominator == 1:
                yield f"{share.numerator}*{name}"
            elif share.numerator == 1 and share.denominator <= 64:
                yield f"{name}/{share.denominator}"
        for name in lengths:
            for times in (1, 2, 3, 4):
                added = number - times * self.sizes[name]
                if 0 < abs(added) <= MOST_ADDED:
                    yield f"{name}{added:+d}" if times == 1 else f"{times}*{name}{added:+d}"
