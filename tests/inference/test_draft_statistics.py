"""What is drawn with guesses has the model's own probabilities: counted over many texts, and wrong ways are noticed."""

import itertools
import math

import pytest
import torch

from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.inference import GenerationBatch, speculative, verification
from clearhead.inference.requests import GenerationRequest
from clearhead.models import DecoderLM

VOCAB_SIZE, LENGTH, TEXTS = 5, 3, 2000
CONFIG = SamplingConfig(temperature=0.7, top_k=4, max_new_tokens=LENGTH, seed=1)
PROMPT = [1, 2, 3, 0, 1]  # what follows is guessed from it


@pytest.fixture(autouse=True)
def guesses_from_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, "FIRST_MIN_MATCH", 1)


def model(seed: int) -> DecoderLM:
    shape = ModelConfig(vocab_size=VOCAB_SIZE, block_size=8, n_layers=1, n_heads=2, d_model=8)
    network = DecoderLM(shape, seed=seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(4)  # so that the odds are far from even
    return network.eval()


@torch.inference_mode()
def probabilities(model: DecoderLM) -> dict[tuple[int, ...], float]:
    """Of every text, by the definition."""
    by_text = {}
    for text in itertools.product(range(VOCAB_SIZE), repeat=LENGTH):
        logits = model(torch.tensor([[*PROMPT, *text]]))[0, len(PROMPT) - 1 : -1] / CONFIG.temperature
        least = logits.topk(4).values[:, -1:]
        odds = logits.where(logits >= least, -torch.inf).softmax(-1)  # (LENGTH, V)
        by_text[text] = math.prod(odds[position, token].item() for position, token in enumerate(text))
    return by_text


def standardized(target: DecoderLM, draft: DecoderLM | None) -> float:
    """Pearson's chi-square of the texts that are written, in standard deviations from what chance gives."""
    expected = {text: TEXTS * p for text, p in probabilities(target).items()}
    texts: dict[int, list[int]] = {}
    with GenerationBatch(target, EngineConfig(draft="ngrams" if draft is None else "a run"), draft=draft) as batch:
        batch.add([PROMPT] * TEXTS, CONFIG)
        while batch.live:
            for name, tokens in batch.step().items():
                texts.setdefault(name, []).extend(tokens)
    counts = dict.fromkeys(expected, 0)
    for text in texts.values():
        counts[tuple(text)] += 1
    if any(counts[text] for text, number in expected.items() if number == 0):
        return math.inf  # what cannot be was written
    often = [text for text, number in expected.items() if number >= 5]
    rare = sum(counts[text] for text in expected if text not in often), TEXTS - sum(expected[text] for text in often)
    cells = [(counts[text], expected[text]) for text in often] + ([rare] if rare[1] > 1 else [])
    assert len(cells) > 30
    statistic = sum((count - expectation) ** 2 / expectation for count, expectation in cells)
    return (statistic - (len(cells) - 1)) / math.sqrt(2 * (len(cells) - 1))


@pytest.mark.parametrize("draft", [None, 2, 1], ids=["ngrams", "another model", "itself"])
def test_texts_are_as_likely_as_the_model_says(draft: int | None) -> None:
    assert abs(standardized(model(1), None if draft is None else model(draft))) < 3


# What may go wrong, planted: each of these writes texts that look well, one by one.


def test_guesses_that_are_always_believed_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        verification, "_count_accepted", lambda texts, model_probs, draft_probs, guesses, lengths: lengths
    )
    assert standardized(model(1), model(2)) > 30


def test_a_token_drawn_again_from_all_odds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        verification,
        "_residual_probs",
        lambda model_probs, draft_probs, counts, doubted: model_probs[torch.arange(len(counts)), counts],
    )
    assert standardized(model(1), model(2)) > 10


def test_random_numbers_used_twice_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = GenerationRequest.uniforms
    monkeypatch.setattr(
        GenerationRequest, "uniforms", lambda self, start, count, purpose="token": numbers(self, start, count)
    )
    assert standardized(model(1), model(2)) > 10


def test_what_follows_a_wrong_guess_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = verification.matching_prefix
    monkeypatch.setattr(verification, "matching_prefix", lambda guess, drawn: min(len(guess), agreed(guess, drawn) + 1))
    assert standardized(model(1), None) > 10
