"""Generation, with cache, padding and sliding window, against a forward over the whole context for every token."""

import pytest
import torch
from law_models import CHOICES, VOCAB_SIZE, Choice, make_model, name, random_ids

from clearhead.config import ModelConfig, SamplingConfig
from clearhead.inference import context, generate_ids
from clearhead.inference.texts import begin, draw_ahead
from clearhead.models import BigramLM, CausalLM

every_choice = pytest.mark.parametrize("choice", CHOICES, ids=name)
BLOCK_SIZE, NEW_TOKENS = 10, 32  # several slides
PROMPTS = [random_ids(length, seed=length).tolist() for length in (4, 1, 13, 10, 4)]  # two longer than a block


def written(
    model: CausalLM, prompts: list[list[int]], config: SamplingConfig, end: int | None = None
) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in prompts]
    for column in generate_ids(model, prompts, config, end=end):
        for row, token in column.items():
            texts[row].append(token)
    return texts


@torch.inference_mode()
def written_without_cache(model: CausalLM, prompt: list[int], config: SamplingConfig) -> list[int]:
    """The same by the definition: one forward over the context for every token."""
    endless, block_size = model.endless_window is not None, model.config.block_size
    seen, text = (prompt if endless else prompt[-block_size:]), list[int]()
    drawn = begin(0, [prompt], config)
    for _ in range(config.max_new_tokens):
        text.append(int(draw_ahead(drawn, model(torch.tensor([seen]))[:, -1:], torch.empty(1, 0, dtype=torch.int64))))
        drawn[0].write(text[-1:])
        if not endless and len(seen) == block_size:
            seen = seen[block_size - block_size // 2 :]
        seen = [*seen, text[-1]]
    return text


@every_choice
def test_greedy_is_the_argmax_of_the_full_forward(choice: Choice) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    config = SamplingConfig(greedy=True, max_new_tokens=NEW_TOKENS)
    expected = [written_without_cache(model, prompt, config) for prompt in PROMPTS[:3]]
    assert written(model, PROMPTS[:3], config) == expected


@every_choice
def test_a_sampled_text_depends_on_no_neighbour(choice: Choice) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    config = SamplingConfig(seed=3, temperature=1.5, repetition_penalty=1.2, max_new_tokens=NEW_TOKENS)
    together = written(model, PROMPTS, config, end=VOCAB_SIZE - 1)
    alone = [written(model, [prompt], config, end=VOCAB_SIZE - 1)[0] for prompt in PROMPTS]
    alone[4] = written(model, [PROMPTS[4]] * 2, config, end=VOCAB_SIZE - 1)[1]  # an equal prompt's second text
    assert together == alone
    assert not any(VOCAB_SIZE - 1 in text for text in together)
    assert len(set(map(len, together))) > 1, "rows that end at the same time would show little"


@pytest.mark.parametrize("positions", ["learned", "rope"])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("at_once", [1, 6, 20])
def test_reading_the_prompt_in_chunks_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, positions: str, window: int | None, at_once: int
) -> None:
    model = make_model(positions=positions, window=window, block_size=BLOCK_SIZE)
    config = SamplingConfig(greedy=True, max_new_tokens=NEW_TOKENS)
    expected = written(model, PROMPTS, config)
    monkeypatch.setattr(context, "PREFILL_TOKENS", at_once)
    assert written(model, PROMPTS, config) == expected


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_the_smallest_blocks_slide(block_size: int) -> None:
    model, config = make_model(block_size=block_size), SamplingConfig(greedy=True, max_new_tokens=12)
    expected = [written_without_cache(model, prompt, config) for prompt in PROMPTS]
    assert written(model, PROMPTS, config) == expected


@pytest.mark.parametrize("positions", ["rope", "alibi", "none"])
@pytest.mark.parametrize("window", [1, 2, 30])
def test_any_window_goes_on_without_end(positions: str, window: int) -> None:
    model = make_model(positions=positions, window=window, block_size=BLOCK_SIZE, embedding_ngrams=3)
    config = SamplingConfig(greedy=True, max_new_tokens=100)
    expected = [written_without_cache(model, prompt, config) for prompt in PROMPTS[1:3]]
    assert written(model, PROMPTS[1:3], config) == expected


def test_a_bigram_model_writes_from_its_table() -> None:
    model = BigramLM(ModelConfig(architecture="bigram", vocab_size=VOCAB_SIZE, block_size=4))
    follower = model(torch.arange(VOCAB_SIZE)[None])[0].argmax(-1).tolist()
    notices: list[str] = []
    config = SamplingConfig(greedy=True, max_new_tokens=20)
    last, text = 3, list[int]()
    for _ in range(20):
        last = follower[last]
        text.append(last)
    assert written(model, [[3], [1, 2, 3]], config) == [text, text]
    assert [*generate_ids(model, [[3]], config, on_notice=notices.append)]
    assert not notices


def test_the_cache_is_bounded_by_the_window() -> None:
    model = make_model(positions="rope", window=5, block_size=BLOCK_SIZE)
    reading, columns = context.Context(model), []
    reading.join([[1] * 20, [2] * 3], 10_000)
    for _ in range(200):
        reading.read([[1], [2]])
        columns.append(reading._cache.length)
    assert max(columns) <= reading._cache.capacity <= context.PREFILL_TOKENS
