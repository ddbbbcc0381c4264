"""Generation, with cache, padding and sliding window, against a forward over the whole context for every token."""

import pytest
import torch
from law_models import CHOICES, VOCAB_SIZE, Choice, make_model, name, random_ids

from clearhead.config import ModelConfig, SamplingConfig
from clearhead.inference import kv_context, stream_ids
from clearhead.models import BigramLM, CausalLM

every_choice = pytest.mark.parametrize("choice", CHOICES, ids=name)
BLOCK_SIZE, NEW_TOKENS = 10, 32  # several slides
PROMPTS = [random_ids(length, seed=length).tolist() for length in (4, 1, 13, 10, 4)]  # two longer than a block


def written(
    model: CausalLM, prompts: list[list[int]], config: SamplingConfig, end: int | None = None
) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in prompts]
    for column in stream_ids(model, prompts, config, end=end):
        for row, token in column.items():
            texts[row].append(token)
    return texts


@torch.inference_mode()
def likeliest_tokens(model: CausalLM, prompt: list[int], text: list[int]) -> list[int]:
    """Which token should stand at each place of a greedy text: by full forwards, one for each context.

    Equal to the text if and only if each token is the likeliest after those before it.
    """
    block_size = model.config.block_size
    endless = model.receptive_field is not None
    context, likeliest = (prompt if endless else prompt[-block_size:]), list[int]()
    while len(likeliest) < len(text):
        room = len(text) if endless else block_size + 1 - len(context)  # tokens written before it slides
        more = text[len(likeliest) :][:room]
        logits = model(torch.tensor([[*context, *more[:-1]]]))[0, len(context) - 1 :]  # (len(more), V)
        likeliest += logits.argmax(-1).tolist()
        context = [*context, *more][-(block_size // 2 + 1) :]
    return likeliest


def assert_greedy(model: CausalLM, prompts: list[list[int]], config: SamplingConfig) -> None:
    for prompt, text in zip(prompts, written(model, prompts, config), strict=True):
        assert len(text) == config.max_new_tokens
        assert text == likeliest_tokens(model, prompt, text)


@every_choice
def test_greedy_is_the_argmax_of_the_full_forward(choice: Choice) -> None:
    config = SamplingConfig(greedy=True, max_new_tokens=NEW_TOKENS)
    assert_greedy(make_model(**choice, block_size=BLOCK_SIZE), PROMPTS[:3], config)


@pytest.mark.parametrize("choice", CHOICES[::4], ids=name)  # neighbors of every choice: the greedy texts above
def test_a_sampled_text_depends_on_no_neighbor(choice: Choice) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    config = SamplingConfig(seed=3, temperature=1.5, repetition_penalty=1.2, max_new_tokens=20)
    together = written(model, PROMPTS, config, end=VOCAB_SIZE - 1)
    alone = [written(model, [prompt], config, end=VOCAB_SIZE - 1)[0] for prompt in PROMPTS[:4]]
    alone += written(model, [PROMPTS[4]] * 2, config, end=VOCAB_SIZE - 1)[1:]  # an equal prompt's second text
    assert together == alone
    assert not any(VOCAB_SIZE - 1 in text for text in together)
    assert len(set(map(len, together))) > 1, "rows that end at the same time would show little"


@pytest.mark.parametrize("positions", ["learned", "rope"])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("at_once", [1, 6, 20])
def test_reading_the_prompt_in_chunks_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, positions: str, window: int | None, at_once: int
) -> None:
    model = make_model(positions=positions, sliding_window=window, block_size=BLOCK_SIZE)
    config = SamplingConfig(greedy=True, max_new_tokens=NEW_TOKENS)
    expected = written(model, PROMPTS, config)
    monkeypatch.setattr(kv_context, "PREFILL_TOKENS", at_once)
    assert written(model, PROMPTS, config) == expected


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_the_smallest_blocks_slide(block_size: int) -> None:
    assert_greedy(make_model(block_size=block_size), PROMPTS, SamplingConfig(greedy=True, max_new_tokens=12))


@pytest.mark.parametrize("positions", ["rope", "alibi", "none"])
@pytest.mark.parametrize("window", [1, 2, 30])
def test_any_window_goes_on_without_end(positions: str, window: int) -> None:
    model = make_model(positions=positions, sliding_window=window, block_size=BLOCK_SIZE, embedding_ngrams=3)
    assert_greedy(model, PROMPTS[1:3], SamplingConfig(greedy=True, max_new_tokens=100))


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
    assert [*stream_ids(model, [[3]], config, on_notice=notices.append)]
    assert not notices


def test_the_cache_is_bounded_by_the_window() -> None:
    model = make_model(positions="rope", sliding_window=5, block_size=BLOCK_SIZE)
    reading, columns = kv_context.KVContext(model), []
    reading.prefill([[1] * 20, [2] * 3], 10_000)
    for _ in range(200):
        reading.forward([[1], [2]])
        columns += [reading._cache.length(row.slot) for row in reading._rows]
    assert max(columns) <= reading._cache.capacity < kv_context.PREFILL_TOKENS + 5
