"""The longest earlier occurrence, by its definition; guesses that turn out wrong become rare."""

import random

import pytest

from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.errors import UsageError
from clearhead.inference import generate_ids
from clearhead.inference.drafts import NgramDraft, Repeats
from clearhead.models import DecoderLM


def longest_repeat(ids: list[int]) -> tuple[int, int]:
    """Tokens of the longest end that occurs before, and how many tokens there are where it first ends."""
    for length in range(len(ids) - 1, 0, -1):
        for end in range(length, len(ids)):
            if ids[end - length : end] == ids[len(ids) - length :]:
                return length, end
    return 0, 0


@pytest.mark.parametrize("kinds", [1, 2, 3, 8])
def test_the_longest_repeat_is_found(kinds: int) -> None:
    draw = random.Random(kinds)
    ids = [draw.randrange(kinds) for _ in range(40)] + [1, 2, 3] * 4
    found = Repeats(ids[:5])
    for known in range(5, len(ids) + 1):
        found.extend(ids[len(found.ids) : known])
        length, end = longest_repeat(ids[:known])
        assert found.repeated == length
        expected = list(ids[:known])
        for place in range(9):  # what is guessed may be guessed from
            expected.append(expected[end + place])
        assert found.guess(9) == (expected[known:] if length else [])


def test_where_nothing_is_repeated_nothing_is_guessed() -> None:
    assert Repeats([]).guess(4) == Repeats([1, 2, 3]).guess(4) == []
    assert Repeats([1, 2, 3]).repeated == 0


def test_guesses_that_are_wrong_become_rare() -> None:
    draw = random.Random(0)
    tried = []
    for share in (0.0, 1.0):  # of the guesses that are right
        draft, made = NgramDraft(), 0
        draft.join([[draw.randrange(4) for _ in range(100)]], 0)
        for _ in range(300):
            (guess,) = draft.guess([1], []).tokens
            made += len(guess)
            draft.learn([guess if guess and share else [draw.randrange(4)]])
        tried.append(made)
    assert tried[0] < 150
    assert tried[1] > 290


def test_the_model_of_a_run_must_be_given() -> None:
    model = DecoderLM(ModelConfig(vocab_size=5, block_size=8, n_layers=1, n_heads=1, d_model=8))
    with pytest.raises(UsageError, match="'small' is a run"):
        list(generate_ids(model, [[1]], SamplingConfig(), engine=EngineConfig(draft="small")))
