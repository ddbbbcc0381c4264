"""Texts with guesses are texts without, token by token, over every choice: greedy, whoever guesses; drawn, by n-grams.

What is drawn with a draft model has the same probabilities: see tests/inference/test_draft_statistics.py.
"""

import random
from collections.abc import Sequence

import pytest
import torch
from law_models import NATIVE_CHOICES, VOCAB_SIZE, Choice, make_model, name, random_ids

from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.inference import batching, kv_context, stream_ids
from clearhead.inference.requests import GenerationRequest
from clearhead.inference.verification import DraftTokens
from clearhead.models import BigramLM, CausalLM

every_choice = pytest.mark.parametrize("choice", NATIVE_CHOICES, ids=name)
BLOCK_SIZE, NEW_TOKENS = 10, 16  # two slides or more
PROMPTS = [random_ids(length, seed=length).tolist() for length in (4, 1, 13, 10, 4)]  # two longer than a block
PLAIN, NGRAMS, RUN = EngineConfig(), EngineConfig(draft="ngrams"), EngineConfig(draft="a run")
DRAWN: dict[str, object] = {
    "seed": 3,
    "temperature": 1.5,
    "repetition_penalty": 1.2,
    "top_k": 8,
    "max_new_tokens": NEW_TOKENS,
}
GREEDY: dict[str, object] = {"greedy": True, "max_new_tokens": NEW_TOKENS}


class Oracle:
    """Knows the texts, but for some tokens here and there."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self.texts = [list(text) for text in texts]
        self.positions = [0] * len(texts)
        self.random = random.Random(0)
        self.right = 0

    def prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None: ...

    def reorder(self, rows: Sequence[int]) -> None:
        self.texts, self.positions = [self.texts[row] for row in rows], [self.positions[row] for row in rows]

    def accept(self, tokens: Sequence[Sequence[int]]) -> None:
        self.positions = [position + len(new) for position, new in zip(self.positions, tokens, strict=True)]
        self.right += sum(len(new) - 1 for new in tokens)

    def draft(self, max_tokens: Sequence[int], texts: Sequence[GenerationRequest]) -> DraftTokens:
        known = [text[p : p + count] for text, p, count in zip(self.texts, self.positions, max_tokens, strict=True)]
        return DraftTokens([[(token + (self.random.random() < 0.2)) % VOCAB_SIZE for token in row] for row in known])


def written(
    model: CausalLM,
    prompts: list[list[int]],
    options: dict[str, object],
    engine: EngineConfig = PLAIN,
    draft: CausalLM | None = None,
) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in prompts]
    config = SamplingConfig.read(options)
    end = None if config.greedy else VOCAB_SIZE - 1
    for column in stream_ids(model, prompts, config, end=end, engine=engine, draft=draft):
        for row, token in column.items():
            texts[row].append(token)
    return texts


@every_choice
def test_guesses_partly_right_change_nothing(monkeypatch: pytest.MonkeyPatch, choice: Choice) -> None:
    options = GREEDY if NATIVE_CHOICES.index(choice) % 3 else DRAWN
    model = make_model(**choice, block_size=BLOCK_SIZE)
    expected = written(model, PROMPTS, options)
    oracle = Oracle(expected)
    monkeypatch.setattr(batching, "drafter_for", lambda *arguments: oracle)
    assert written(model, PROMPTS, options, NGRAMS) == expected
    assert oracle.right >= 5


@pytest.mark.parametrize("choice", NATIVE_CHOICES[::8], ids=name)
def test_the_likeliest_tokens_are_written_whatever_an_ngram_was_followed_by(choice: Choice) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    assert written(model, PROMPTS[:3], GREEDY, NGRAMS) == written(model, PROMPTS[:3], GREEDY)


@pytest.mark.parametrize(
    "draft", [{"block_size": 6}, {"sliding_window": 3, "positions": "rope"}, {"n_layers": 1}, {}], ids=str
)
@pytest.mark.parametrize(
    "model", [{"positions": "rope", "embedding_ngrams": 3}, {"positions": "alibi", "sliding_window": 4}]
)
def test_a_draft_model_changes_nothing(model: Choice, draft: Choice) -> None:
    small = make_model(**{"block_size": BLOCK_SIZE, "logit_ngrams": 2} | draft)
    large = make_model(**model, block_size=BLOCK_SIZE)
    for prompts in (PROMPTS[2:3], PROMPTS[:3]):
        assert written(large, prompts, GREEDY, RUN, small) == written(large, prompts, GREEDY)


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_the_smallest_blocks_slide(block_size: int) -> None:
    model = make_model(block_size=block_size)
    for draft in (None, make_model(block_size=1), make_model(block_size=2)):
        engine = NGRAMS if draft is None else RUN
        assert written(model, PROMPTS, GREEDY, engine, draft) == written(model, PROMPTS, GREEDY)


def test_the_models_own_guesses_are_all_right(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = make_model(positions="rope", block_size=64), list[int]()
    hidden = model.body

    def counted(ids: torch.Tensor, **options: object) -> torch.Tensor:
        calls.append(ids.shape[1])
        return hidden(ids, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(model, "body", counted)
    itself = make_model(positions="rope", block_size=64)
    for options in (GREEDY, DRAWN):
        assert len([*stream_ids(model, PROMPTS[:1], SamplingConfig.read(options), engine=RUN, draft=itself)]) == 16
        assert calls == [4, 5, 9, 1], "the prompt; then the last token with 4, 8 and, of 16, no more guesses"
        calls.clear()


@pytest.mark.parametrize("window", [1, 2, 30])
def test_a_window_goes_on_without_end(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    monkeypatch.setattr(kv_context, "PREFILL_TOKENS", 6)  # and so little room
    model = make_model(positions="rope", sliding_window=window, block_size=BLOCK_SIZE, embedding_ngrams=3)
    options = GREEDY | {"max_new_tokens": 40}
    draft = make_model(positions="alibi", sliding_window=2)
    assert written(model, PROMPTS[1:3], options, NGRAMS) == written(model, PROMPTS[1:3], options)
    assert written(model, PROMPTS[1:3], options, RUN, draft) == written(model, PROMPTS[1:3], options)


def test_a_bigram_model_guesses_and_checks() -> None:
    model = BigramLM(ModelConfig(architecture="bigram", vocab_size=VOCAB_SIZE, block_size=4))
    assert written(model, PROMPTS, DRAWN, NGRAMS) == written(model, PROMPTS, DRAWN)
    assert written(model, PROMPTS, GREEDY, RUN, model) == written(model, PROMPTS, GREEDY)
