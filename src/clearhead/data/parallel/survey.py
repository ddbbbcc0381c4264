"""One pass over the pairs: finds bad and repeated pairs, and chooses the validation split."""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clearhead.data.parallel.reading import Pair, PairSource
from clearhead.errors import DataError
from clearhead.wording import counted

MAX_HELD_OUT = 2_000  # enough for BLEU to tell two models apart, and not too many to translate again and again
MIN_PAIRS = 10
_LONG = 60  # characters; of shorter sentences one may well be ten times as long as the other ("Ja." and a courtesy)
_UNEQUAL = 9  # times as long: Chinese to English it is 3 to 5 times, hardly ever 9; Moses cleans at 9 words to 1 too

_FAULTS = {
    "empty": ("has an empty side", "have an empty side"),
    "unequal": (
        f"has one side more than {_UNEQUAL} times as long as the other",
        f"have one side more than {_UNEQUAL} times as long as the other",
    ),
}

Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class PairSurvey:
    """What was found.

    Attributes:
        keys: (N,) a digest of the source sentence of each good pair, in order.
        n_different: good pairs without repetitions.
        characters: of both sides of the good pairs together.
        alphabets: the distinct characters of each side, in the order of code points.
        bad: how many pairs have each fault that occurs, and the place of the first of them.
    """

    keys: Keys
    n_different: int
    characters: int
    alphabets: tuple[str, str]
    bad: dict[str, tuple[int, str]]

    @property
    def n_bad(self) -> int:
        """Pairs with a fault."""
        return sum(count for count, _ in self.bad.values())


def fault(pair: Pair) -> Literal["empty", "unequal"] | None:
    """What is wrong with a pair that nobody could learn from."""
    shorter, longer = sorted((len(pair.source), len(pair.target)))
    if not shorter:
        return "empty"
    return "unequal" if longer > max(_LONG, _UNEQUAL * shorter) else None


def good_pairs(source: PairSource) -> Iterator[Pair]:
    """The pairs without those that have a fault."""
    return (pair for pair in source.pairs() if fault(pair) is None)


def key_of(sentence: str) -> int:
    """64 bits that are the same for the same sentence on every machine, and look random."""
    return int.from_bytes(hashlib.blake2b(sentence.encode("utf-8"), digest_size=8).digest(), "little")


def survey_pairs(source: PairSource) -> PairSurvey:
    """Read the source once, keeping 16 bytes of each pair. DataErrors of reading come from here first."""
    keys, both = array("Q"), array("Q")
    source_alphabet, target_alphabet = set[str](), set[str]()
    bad: dict[str, tuple[int, str]] = {}
    characters = 0
    for pair in source.pairs():
        if name := fault(pair):
            count, line = bad.get(name, (0, f"line {pair.line:,}"))
            bad[name] = (count + 1, line)
            continue
        keys.append(key_of(pair.source))
        both.append(key_of(f"{pair.source}\0{pair.target}"))
        characters += len(pair.source) + len(pair.target)
        source_alphabet.update(pair.source)
        target_alphabet.update(pair.target)
    return PairSurvey(
        keys=np.array(keys, dtype=np.uint64),
        n_different=len(np.unique(np.array(both, dtype=np.uint64))),
        characters=characters,
        alphabets=("".join(sorted(source_alphabet)), "".join(sorted(target_alphabet))),
        bad=bad,
    )


def describe_faults(bad: dict[str, tuple[int, str]]) -> str:
    """The faults in words: how many pairs have each, and the line of the first."""
    return " and ".join(
        f"{count:,} {'pair' if count == 1 else 'pairs'} {_FAULTS[name][count > 1]} ({line})"
        for name, (count, line) in bad.items()
    )


def hold_out(keys: Keys, val_fraction: float, name: str) -> Keys:
    """The keys of the source sentences to validate on: a choice that does not depend on the order of the pairs.

    All pairs of a sentence are on one side, so those of a sentence that has more pairs than are wanted are trained
    on. About `val_fraction` of the pairs are taken, at most `MAX_HELD_OUT`, at least one.

    Raises:
        DataError: too few pairs, or only one source sentence.
    """
    if len(keys) < MIN_PAIRS:
        raise DataError(f"{name} has {counted(len(keys), 'usable pair')}; at least {MIN_PAIRS} are needed to train")
    different, counts = np.unique(keys, return_counts=True)  # in the order of keys, which is as good as a shuffle
    if len(different) == 1:
        raise DataError(f"{name} has the same source sentence in every pair; at least two are needed to hold one out")
    count = min(max(1, int(len(keys) * val_fraction)), MAX_HELD_OUT)
    fit = counts <= count
    if not fit.any():
        return different[[counts.argmin()]]
    return different[fit][np.cumsum(counts[fit]) <= count]
