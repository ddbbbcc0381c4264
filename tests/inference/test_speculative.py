"""The longest earlier occurrence, by its definition; guesses that turn out wrong become rare."""

import random
from collections.abc import Sequence

import pytest
import torch

from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.errors import UsageError
from clearhead.inference import stream_ids
from clearhead.inference.requests import GenerationRequest, new_requests
from clearhead.inference.sampling_ahead import probs_ahead
from clearhead.inference.speculative import ModelDrafter, NgramDrafter, SuffixAutomaton
from clearhead.inference.verification import DraftTokens
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
    automaton = SuffixAutomaton(ids[:5])
    for known in range(5, len(ids) + 1):
        automaton.extend(ids[len(automaton.ids) : known])
        length, end = longest_repeat(ids[:known])
        assert automaton.repeated_length == length
        expected = list(ids[:known])
        for offset in range(9):  # what is guessed may be guessed from
            expected.append(expected[end + offset])
        assert automaton.draft(9) == (expected[known:] if length else [])


def test_where_nothing_is_repeated_nothing_is_guessed() -> None:
    assert SuffixAutomaton([]).draft(4) == SuffixAutomaton([1, 2, 3]).draft(4) == []
    assert SuffixAutomaton([1, 2, 3]).repeated_length == 0


def test_guesses_that_are_wrong_become_rare() -> None:
    draw = random.Random(0)
    tried = []
    for share in (0.0, 1.0):  # of the guesses that are right
        draft, n_drafted = NgramDrafter(), 0
        draft.prefill([[draw.randrange(4) for _ in range(100)]], 0)
        for _ in range(300):
            (guess,) = draft.draft([1], []).tokens
            n_drafted += len(guess)
            draft.accept([guess if guess and share else [draw.randrange(4)]])
        tried.append(n_drafted)
    assert tried[0] < 150
    assert tried[1] > 290


def tiny(vocab_size: int = 5) -> DecoderLM:
    return DecoderLM(ModelConfig(vocab_size=vocab_size, block_size=8, n_layers=1, n_heads=1, d_model=8))


def test_the_model_of_a_run_must_be_given() -> None:
    with pytest.raises(UsageError, match="'small' is a run"):
        list(stream_ids(tiny(), [[1]], SamplingConfig(), engine=EngineConfig(draft="small")))


def test_a_model_that_is_given_guesses_and_ngrams_do_not_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    guess = ModelDrafter.draft

    def counted(self: ModelDrafter, most: Sequence[int], texts: Sequence[GenerationRequest]) -> DraftTokens:
        lengths.extend(most)
        return guess(self, most, texts)

    monkeypatch.setattr(ModelDrafter, "draft", counted)
    assert list(stream_ids(tiny(), [[1]], SamplingConfig(max_new_tokens=3), draft=tiny()))
    assert lengths
    with pytest.raises(UsageError, match="not both"):
        list(stream_ids(tiny(), [[1]], SamplingConfig(), engine=EngineConfig(draft="ngrams"), draft=tiny()))


def test_a_draft_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="it knows 6 tokens and the model 5"):
        list(stream_ids(tiny(), [[1]], SamplingConfig(), draft=tiny(6)))


def test_odds_are_exact_where_a_model_is_not() -> None:
    texts = new_requests(0, [[1]], SamplingConfig(temperature=1.0))
    logits = torch.linspace(-3, 3, 5000).to(torch.bfloat16).view(1, 1, -1)
    odds = probs_ahead(texts, logits, torch.empty(1, 0, dtype=torch.int64))
    assert odds.sum().item() == pytest.approx(1, abs=1e-4)
    torch.testing.assert_close(odds[0, 0], logits[0, 0].double().softmax(-1).float(), rtol=1e-4, atol=0)
