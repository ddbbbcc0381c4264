"""A text that waits for its reader keeps its slot, costs nothing, and is the text that it would have been."""

import random

import pytest
from law_models import make_model, random_ids

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.inference import GenerationBatch, TextOptions
from clearhead.models import DecoderLM
from clearhead.native import compiler

WARM = SamplingConfig(seed=3, temperature=1.5, max_new_tokens=40)
PROMPTS = [random_ids(length, seed=length).tolist() for length in (5, 1, 9, 5)]
NATIVE = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
ENGINES = [
    EngineConfig(engine="eager"),
    EngineConfig(engine="eager", draft="ngrams"),
    pytest.param(EngineConfig(engine="native"), marks=NATIVE),
    pytest.param(EngineConfig(engine="native", draft="ngrams"), marks=NATIVE),
]
pytestmark = pytest.mark.usefixtures("compiled_code")


def alone(model: DecoderLM, engine: EngineConfig, prompt: list[int], options: TextOptions) -> list[int]:
    batch = GenerationBatch(model, engine, slots=1)
    [name] = batch.add([prompt], WARM, options=options)
    tokens = list[int]()
    with batch:
        while batch.live:
            tokens += batch.step().get(name, [])
    return tokens


@pytest.mark.parametrize("engine", ENGINES)
def test_texts_that_pause_at_any_time_are_those_that_do_not(engine: EngineConfig) -> None:
    model, draw = make_model(positions="rope", block_size=64).float(), random.Random(0)
    batch = GenerationBatch(model, engine, slots=3)
    requests = [(prompt, TextOptions(logprobs=1 if number % 2 else None)) for number, prompt in enumerate(PROMPTS)]
    names = [batch.add([prompt], WARM, options=options)[0] for prompt, options in requests]
    texts = {name: list[int]() for name in names}
    resting = set[int]()
    with batch:
        for _ in range(2000):
            if not batch.live:
                break
            batch.resume(resting)
            resting = {name for name in names if draw.random() < 0.5}
            batch.pause(resting)
            for name, tokens in batch.step().items():
                assert name not in resting or not texts[name], "only its first token, which its prompt gives"
                texts[name] += tokens
    assert [texts[name] for name in names] == [alone(model, engine, prompt, options) for prompt, options in requests]


def test_others_go_on_beside_a_text_that_pauses() -> None:
    model = make_model(positions="rope", block_size=64).float()
    batch = GenerationBatch(model, EngineConfig(engine="eager"), slots=2)
    resting, going = batch.add(PROMPTS[:2], WARM)
    with batch:
        batch.step()
        batch.pause([resting])
        while going in batch.live:
            assert resting not in batch.step()
        assert batch.live == {resting}
        assert batch.step() == {}
        batch.resume([resting])
        assert batch.step()[resting]
