"""Large answers in pieces are the JSON that Python's encoder writes at once."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.server.http.large_json import PIECE, encoded_aside, json_pieces

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(lambda x: x * 70)
)


@settings(max_examples=15)  # a list may repeat lists seventy times
@given(VALUES)
def test_pieces_are_the_whole(value: object) -> None:
    text = "".join(json_pieces(value))
    assert text == json.dumps(value, allow_nan=False, separators=(",", ":"))


def test_no_piece_is_long_whatever_holds_the_list() -> None:
    columns = {"tokens": ["x"] * 5000, "top": [{"x": -1.0, "y": -2.0}] * 5000, "offsets": [*range(5000)], "none": None}
    value = {"choices": [{"index": index, "logprobs": columns} for index in range(3)], "vector": [0.25] * 5000}
    pieces = [*json_pieces(value)]
    assert json.loads("".join(pieces)) == value
    assert max(map(len, pieces)) < 40 * PIECE


def test_what_is_no_json_is_refused_as_python_refuses_it() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        asyncio.run(encoded_aside(lambda: {"vector": [0.0] * 100 + [float("nan")]}))
