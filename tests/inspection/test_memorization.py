"""Copied spans and n-grams are those that a naive comparison counts, whatever the pieces and the hashes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.errors import UsageError
from clearhead.inspection import measure_memorization, memorization
from clearhead.inspection.memorization import Hashed

TOKENS = st.lists(st.integers(0, 2), max_size=60)
TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=25), min_size=1, max_size=3).filter(any)


def naive(tokens: Sequence[int], texts: Sequence[Sequence[int]], n: int) -> tuple[list[int], int]:
    """The copied n-grams of each text, and the length of the longest copied span."""

    def occurs(span: Sequence[int]) -> bool:
        return any(list(tokens[at : at + len(span)]) == list(span) for at in range(len(tokens) - len(span) + 1))

    copied = [sum(occurs(text[at : at + n]) for at in range(len(text) - n + 1)) for text in texts]
    spans = (text[at:end] for text in texts for at in range(len(text)) for end in range(at + 1, len(text) + 1))
    return copied, max((len(span) for span in spans if occurs(span)), default=0)


@settings(deadline=None, max_examples=150)
@given(TOKENS, TEXTS, st.integers(1, 6), st.integers(1, 70), st.sampled_from([memorization.BASE, 1]))
def test_it_is_what_a_naive_comparison_counts(
    tokens: list[int], texts: list[list[int]], n: int, piece: int, base: int
) -> None:
    """Also with a base of 1, whose hash is the same for every order of the same tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memorization, "BASE", base)
        result = measure_memorization(np.array(tokens, dtype=np.uint16), texts, n=n, piece=piece)
    copied, longest = naive(tokens, texts, n)
    assert list(result.copied) == copied
    assert list(result.n_grams) == [max(0, len(text) - n + 1) for text in texts]
    assert result.longest == longest
    span = texts[result.text][result.start : result.start + longest]
    assert tokens[result.source_start : result.source_start + longest] == span
    assert len(span) == longest


def test_hashes_of_equal_spans_are_equal_and_of_others_differ() -> None:
    ids = np.random.default_rng(0).integers(0, 4, 3000)
    for length in (1, 3, 8):
        hashes = Hashed(ids).spans(length)
        spans = np.lib.stride_tricks.sliding_window_view(ids, length)
        assert len(np.unique(hashes)) == len(np.unique(spans, axis=0))
        assert len(hashes) == len(ids) - length + 1


def test_a_copied_passage_is_named_where_it_is_in_a_file(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    draw.integers(0, 500, 100_000).astype(np.uint16).tofile(tmp_path / "tokens.bin")
    tokens = np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="r")
    fresh, passage = draw.integers(500, 600, 40).tolist(), tokens[70_010:70_075].tolist()
    result = measure_memorization(tokens, [fresh, fresh[:7] + passage + fresh], piece=1000)
    assert (result.longest, result.text, result.start, result.source_start) == (65, 1, 7, 70_010)
    assert result.copied == (0, 65 - 19)
    assert result.share == (65 - 19) / (21 + 112 - 19)
    assert "the longest copied span has 65 tokens" in result.verdict
    page = result.named("<b>a passage</b>").html()
    assert "&lt;b&gt;a passage" in page
    assert result.as_dict()["longest"] == 65
    assert result.csv().splitlines() == ["text,n_grams,copied", "0,21,0", "1,93,46"]


def test_nothing_copied_and_nothing_to_compare() -> None:
    result = measure_memorization(np.array([1, 2, 3]), [[7, 8]])
    assert (result.longest, result.share) == (0, 0)
    nothing: list[list[list[int]]] = [[], [[]]]
    for texts in nothing:
        with pytest.raises(UsageError, match="no text to compare"):
            measure_memorization(np.array([1, 2, 3]), texts)
    with pytest.raises(UsageError, match="`n` is at least 1"):
        measure_memorization(np.array([1, 2, 3]), [[1]], n=0)
