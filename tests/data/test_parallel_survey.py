import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data.parallel.reading import Pair
from clearhead.data.parallel.survey import fault, hold_out, key_of
from clearhead.errors import DataError

ENGLISH = "The commission has decided that the measures of last year shall be in force until further notice."
CHINESE = "委员会决定去年的措施继续有效"


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("", "a", "empty"),
        ("a", "", "empty"),
        ("", "", "empty"),
        ("a", "b", None),
        (ENGLISH, CHINESE, None),  # seven times as long, and a good translation
        (CHINESE, ENGLISH, None),
        ("Ja.", "Yes, that is what I have been saying all along, my dear.", None),  # short ones may differ
        ("x" * 10, "y" * 90, None),
        ("x" * 10, "y" * 91, "unequal"),
        ("y" * 91, "x" * 10, "unequal"),
        ("x", "y" * 60, None),
        ("x", "y" * 61, "unequal"),
    ],
)
def test_what_is_wrong_with_a_pair(source: str, target: str, expected: str | None) -> None:
    assert fault(Pair(1, source, target)) == expected


def test_keys_are_the_same_everywhere_and_look_random() -> None:
    keys = np.array([key_of(f"sentence {i}") for i in range(20_000)], dtype=np.uint64)
    assert len(np.unique(keys)) == len(keys)
    for bit in range(64):
        ones = int((keys >> np.uint64(bit) & np.uint64(1)).sum())
        assert abs(ones - 10_000) < 5 * 71, bit  # five standard deviations


@given(
    counts=st.lists(st.integers(1, 40), min_size=2, max_size=60).filter(lambda counts: sum(counts) >= 10),
    val_fraction=st.floats(0.001, 0.999),
    seed=st.integers(0, 2**32),
)
def test_what_is_held_out_is_about_the_share_and_no_matter_of_order(
    counts: list[int], val_fraction: float, seed: int
) -> None:
    keys = [key_of(str(i)) for i, count in enumerate(counts) for _ in range(count)]
    held_out = hold_out(np.array(keys, dtype=np.uint64), val_fraction, "a").tolist()
    random.Random(seed).shuffle(keys)
    assert hold_out(np.array(keys, dtype=np.uint64), val_fraction, "a").tolist() == held_out
    n_held_out = sum(key in held_out for key in keys)
    assert 1 <= n_held_out < len(keys)
    n_expected = max(1, int(val_fraction * len(keys)))
    left = [count for count in counts if count <= n_expected]
    if left:
        assert n_held_out <= n_expected
        assert n_held_out >= min(sum(left), n_expected - max(left) + 1)  # the next sentence would have been too much
    else:
        assert n_held_out == min(counts)


def test_at_most_two_thousand_are_held_out() -> None:
    keys = np.array([key_of(str(i)) for i in range(30_000)], dtype=np.uint64)
    assert len(hold_out(keys, 0.5, "a")) == 2_000
    assert len(hold_out(keys, 0.01, "a")) == 300
    assert set(hold_out(keys, 0.01, "a").tolist()) < set(hold_out(keys, 0.5, "a").tolist())


def test_too_few_pairs_are_a_sentence() -> None:
    nine = np.arange(9, dtype=np.uint64)
    with pytest.raises(DataError, match=r"my\.tsv has 9 usable pairs; at least 10 are needed to train"):
        hold_out(nine, 0.1, "my.tsv")
    assert len(hold_out(np.append(nine, nine), 0.1, "my.tsv")) == 1  # though its two pairs are more than a tenth
    with pytest.raises(DataError, match=r"my\.tsv has the same source sentence in every pair"):
        hold_out(np.zeros(50, dtype=np.uint64), 0.1, "my.tsv")
