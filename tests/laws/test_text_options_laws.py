"""What a text may ask for beside its sampling: log-probabilities, biases, penalties, ends; and why it ended."""

import pytest
import torch
from law_models import VOCAB_SIZE, make_model, random_ids

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.errors import InputError
from clearhead.inference import GenerationBatch, TextOptions
from clearhead.models import DecoderLM
from clearhead.native import compiler

PROMPTS = [random_ids(length, seed=length).tolist() for length in (5, 1, 9)]
WARM = SamplingConfig(seed=3, temperature=1.5, max_new_tokens=12)
GREEDY = SamplingConfig(greedy=True, max_new_tokens=12)
ENGINES = [
    EngineConfig(engine="eager"),
    EngineConfig(engine="eager", draft="ngrams"),
    pytest.param(
        EngineConfig(engine="native"),
        marks=pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler"),
    ),
]
pytestmark = pytest.mark.usefixtures("compiled_code")


def model_of() -> DecoderLM:
    return make_model(positions="rope", block_size=64).float()


def run(batch: GenerationBatch) -> dict[int, list[int]]:
    """All tokens of each text."""
    texts = dict[int, list[int]]()
    with batch:
        while batch.live:
            for name, tokens in batch.step().items():
                texts.setdefault(name, []).extend(tokens)
    return texts


def text_with(model: DecoderLM, prompt: list[int], options: TextOptions, config: SamplingConfig = GREEDY) -> list[int]:
    batch = GenerationBatch(model, EngineConfig(engine="eager"))
    [name] = batch.add([prompt], config, options=options)
    return run(batch)[name]


@pytest.mark.parametrize("config", [GREEDY, WARM], ids=["greedy", "drawn"])
@pytest.mark.parametrize("engine", ENGINES)
@torch.inference_mode()
def test_log_probabilities_are_the_models_own(engine: EngineConfig, config: SamplingConfig) -> None:
    model = model_of()
    batch = GenerationBatch(model, engine, slots=3)
    [plain] = batch.add(PROMPTS[:1], config)
    names = batch.add(PROMPTS, config, options=TextOptions(logprobs=3))
    texts = run(batch)
    assert batch.logprobs.keys() == {*names}, "who does not ask gets none"
    for name, prompt in zip(names, PROMPTS, strict=True):
        ids = torch.tensor([prompt + texts[name]])
        expected = model(ids)[0, len(prompt) - 1 : -1].log_softmax(-1)  # (T, V)
        reported = batch.logprobs[name]
        assert len(reported) == len(texts[name]) == 12
        for own, token, row in zip(reported, texts[name], expected, strict=True):
            assert own.logprob == pytest.approx(float(row[token]), abs=1e-4)
            assert [id for id, _ in own.top] == row.topk(3).indices.tolist()
            assert [value for _, value in own.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
    assert texts[plain] == texts[names[0]], "asking changes nothing"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_token_that_ends_a_text_has_a_log_probability_too(engine: EngineConfig) -> None:
    model = model_of()
    whole = GenerationBatch(model, engine)
    [name] = whole.add(PROMPTS[:1], WARM, options=TextOptions(logprobs=1))
    tokens = run(whole)[name]
    end = tokens[6]
    ended = GenerationBatch(model, engine)
    [name] = ended.add(PROMPTS[:1], WARM, options=TextOptions(logprobs=1, stop_ids=frozenset({end})))
    written = run(ended)[name]
    assert written == tokens[: tokens.index(end)]
    assert [own.token for own in ended.logprobs[name]] == [*written, end]
    assert [own.token for own in whole.logprobs[0]] == tokens


@pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
def test_log_probabilities_have_the_same_bits_beside_others() -> None:
    model, options = model_of(), TextOptions(logprobs=2)
    beside = GenerationBatch(model, EngineConfig(engine="native"), slots=8, prompt_tokens=4)
    names = beside.add(PROMPTS, WARM, options=options)
    beside.add(PROMPTS, WARM)
    texts = run(beside)
    for name, prompt in zip(names, PROMPTS, strict=True):
        alone = GenerationBatch(model, EngineConfig(engine="native"), slots=8, prompt_tokens=4)
        [own] = alone.add([prompt], WARM, options=options)
        assert run(alone)[own] == texts[name]
        assert alone.logprobs[own] == beside.logprobs[name]


@pytest.mark.parametrize("engine", ENGINES)
def test_penalties_and_biases_are_what_they_say(engine: EngineConfig) -> None:
    model = model_of()
    options = TextOptions(logit_bias={3: 2.5, 7: -1.5}, presence_penalty=0.7, frequency_penalty=0.4)
    batch = GenerationBatch(model, engine)
    batch.add(PROMPTS[1:2], WARM)  # another's tokens are not counted
    names = batch.add(PROMPTS, GREEDY, options=options)
    texts = run(batch)
    for name, prompt in zip(names, PROMPTS, strict=True):
        text = list[int]()
        for _ in range(12):
            with torch.no_grad():
                logits = model(torch.tensor([prompt + text]))[0, -1].clone()
            logits[3] += 2.5
            logits[7] -= 1.5
            for token in set(text):
                logits[token] -= 0.7 + 0.4 * text.count(token)
            text.append(int(logits.argmax()))
        assert texts[name] == text
        assert text != text_with(model, prompt, TextOptions()), "or this shows little"


def test_a_bias_forbids_and_forces() -> None:
    model, never = model_of(), {token: -1e9 for token in range(VOCAB_SIZE) if token % 2}
    assert not [token for token in text_with(model, [1, 2], TextOptions(logit_bias=never), WARM) if token % 2]
    assert text_with(model, [1, 2], TextOptions(logit_bias={5: 1e9}), WARM) == [5] * 12


@pytest.mark.parametrize("engine", ENGINES)
def test_why_a_text_ended_is_told(engine: EngineConfig) -> None:
    model = model_of()
    whole = text_with(model, PROMPTS[0], TextOptions())
    cut = max(whole.index(token) for token in whole)  # where the last new token is met for the first time
    batch = GenerationBatch(model, engine)
    [ends, stops, goes_on] = (
        *batch.add(PROMPTS[:1], GREEDY, end=whole[cut]),
        *batch.add(PROMPTS[:1], GREEDY, options=TextOptions(stop_ids=frozenset({whole[cut]}))),
        *batch.add(PROMPTS[:1], GREEDY),
    )
    [leaves] = batch.add(PROMPTS[2:], SamplingConfig(greedy=True, max_new_tokens=400))
    [never] = batch.add(PROMPTS[2:], GREEDY)
    batch.cancel([never])
    texts = dict[int, list[int]]()
    with batch:
        while batch.live - {leaves}:
            for name, tokens in batch.step().items():
                texts.setdefault(name, []).extend(tokens)
        batch.cancel([leaves, ends])
        assert not batch.live
    assert texts[ends] == texts[stops] == whole[:cut]
    assert batch.finish_reasons == {
        ends: "stop",
        stops: "stop",
        goes_on: "length",
        leaves: "cancelled",
        never: "cancelled",
    }


def test_ids_that_the_model_does_not_know_are_refused() -> None:
    batch = GenerationBatch(model_of())
    for options in (TextOptions(logit_bias={VOCAB_SIZE: 1.0}), TextOptions(stop_ids=frozenset({-1}))):
        with pytest.raises(InputError, match="vocabulary"):
            batch.add([[1]], GREEDY, options=options)
