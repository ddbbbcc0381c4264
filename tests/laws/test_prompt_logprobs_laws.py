"""What a model says of a prompt itself: the log-probability of each of its tokens but the first."""

import random
from typing import Any

import pytest
import torch
from law_models import CHOICES, NATIVE_CHOICES, VOCAB_SIZE, WINDOW, Choice, make_model, name, random_ids
from torch import Tensor

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.errors import ClearheadError, InputError, UsageError
from clearhead.inference import GenerationBatch, TextOptions, TokenLogprobs, decoder_backend, evaluate
from clearhead.models import DecoderLM, language_model
from clearhead.native import compiler

GREEDY = SamplingConfig(greedy=True, max_new_tokens=3)
SCORED = TextOptions(prompt_logprobs=2)
ENGINES = [
    "eager",
    pytest.param("native", marks=pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")),
]
pytestmark = pytest.mark.usefixtures("compiled_code")


def batch_of(model: DecoderLM, engine: str, slots: int = 8, prompt_tokens: int | None = 8) -> GenerationBatch:
    return GenerationBatch(model, EngineConfig.read({"engine": engine}), slots=slots, prompt_tokens=prompt_tokens)


def run(batch: GenerationBatch) -> dict[int, list[int]]:
    """All tokens of each text."""
    texts = dict[int, list[int]]()
    with batch:
        while batch.live:
            for text, tokens in batch.step().items():
                texts.setdefault(text, []).extend(tokens)
    return texts


def scores_alone(model: DecoderLM, engine: str, prompt: list[int]) -> list[TokenLogprobs]:
    alone = batch_of(model, engine)
    [text] = alone.add([prompt], GREEDY, options=SCORED)
    run(alone)
    return alone.prompt_logprobs[text]


def prompts_of(draw: random.Random, longest: int, count: int) -> list[list[int]]:
    """Some of which begin as others do, or are the same."""
    prompts = [[draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(1, longest))] for _ in range(count)]
    return [*prompts, prompts[0], max(prompts, key=len)[: longest // 2] + prompts[1][: longest // 2]]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "choice", [CHOICES[0], *NATIVE_CHOICES[::5], {"positions": "rope", "sliding_window": WINDOW}], ids=name
)
@torch.inference_mode()
def test_a_prompt_is_scored_as_the_model_scores_it(
    choice: Choice, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_backend, "PIECE", 3 * VOCAB_SIZE)  # so a prompt comes in several pieces
    monkeypatch.setattr(language_model, "IN_CACHE", 3 * VOCAB_SIZE)
    monkeypatch.setattr(decoder_backend, "FEW", 14 * 14)  # and torch reads longer ones
    model = make_model(**choice).float()
    prompts, batch = prompts_of(random.Random(1), 20, 4), batch_of(model, engine)
    names = batch.add(prompts, GREEDY, options=SCORED)
    run(batch)
    for text, prompt in zip(names, prompts, strict=True):
        expected: Tensor = model(torch.tensor([prompt]))[0, :-1].log_softmax(-1)  # (T - 1, V)
        scores = batch.prompt_logprobs[text]
        assert len(scores) == len(prompt) - 1
        for score, token, row in zip(scores, prompt[1:], expected, strict=True):
            assert score.logprob == pytest.approx(float(row[token]), abs=1e-4)
            assert [value for _, value in score.top] == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)
            assert [float(row[id]) for id, _ in score.top] == pytest.approx([value for _, value in score.top], abs=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_sum_is_what_evaluation_says(engine: str) -> None:
    model, ids = make_model(positions="rope", block_size=64).float(), random_ids(60)
    evaluation = evaluate(model, [(ids[None, :-1], ids[None, 1:])])
    total = sum(score.logprob for score in scores_alone(model, engine, ids.tolist()))
    assert evaluation.tokens == 59
    assert -total / 59 == pytest.approx(evaluation.loss, abs=1e-5)


@pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("few", [12 * 12, decoder_backend.FEW])  # from which on torch reads prompts
def test_scores_have_the_same_bits_whatever_is_beside_them(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_backend, "FEW", few)
    monkeypatch.setattr(decoder_backend, "PIECE", 50 * VOCAB_SIZE)
    model, draw = make_model(positions="rope", block_size=64).float(), random.Random(3)
    prompts = prompts_of(draw, 40, 6)
    beside = batch_of(model, "native", slots=3)
    names = list[int]()
    with beside:
        for prompt in prompts:
            beside.add([prompt, prompt[:9]], GREEDY)  # whose prefix others hold
            names += beside.add([prompt], GREEDY, options=SCORED)
            beside.step()
            beside.add([prompt], GREEDY, options=TextOptions(prompt_logprobs=0, prompt_only=True))
    run(beside)
    for text, prompt in zip(names, prompts, strict=True):
        assert beside.prompt_logprobs[text] == scores_alone(model, "native", prompt)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("few", [12 * 12, decoder_backend.FEW])
def test_asking_changes_no_token_and_no_bit_of_it(few: int, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_backend, "FEW", few)
    model, warm = make_model(positions="rope", block_size=64).float(), SamplingConfig(seed=4, max_new_tokens=6)
    for length in (1, 2, 8, 9, 30):
        prompt = random_ids(length, seed=length).tolist()
        logprobs = list[list[TokenLogprobs]]()
        for options in (TextOptions(logprobs=3), TextOptions(logprobs=3, prompt_logprobs=1)):
            batch = batch_of(model, engine)
            [text] = batch.add([prompt], warm, options=options)
            run(batch)
            logprobs.append(batch.logprobs[text])
        assert logprobs[0] == logprobs[1]


@pytest.mark.parametrize("draft", [None, "ngrams"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_text_may_only_read_its_prompt(engine: str, draft: str | None) -> None:
    model, prompt = make_model(positions="rope", block_size=64).float(), random_ids(30).tolist()
    batch = GenerationBatch(model, EngineConfig.read({"engine": engine, "draft": draft}), slots=2, prompt_tokens=8)
    [only] = batch.add([prompt], GREEDY, options=TextOptions(prompt_logprobs=2, logprobs=1, prompt_only=True))
    [other] = batch.add([prompt[:20]], GREEDY)
    [last] = batch.add([prompt[:10]], GREEDY, options=TextOptions(prompt_only=True))
    assert batch.live == {only, other, last}
    texts = run(batch)
    assert texts[only] == texts[last] == []
    assert batch.logprobs[only] == []
    assert len(texts[other]) == 3
    assert batch.finish_reasons == dict.fromkeys((only, other, last), "length")
    assert batch.prompt_logprobs == {only: scores_alone(model, engine, prompt)}


def test_a_reading_that_is_interrupted_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = make_model(positions="rope", block_size=64).float(), random_ids(40).tolist()
    expected, batch = scores_alone(model, "eager", prompt), batch_of(model, "eager")
    [text] = batch.add([prompt], GREEDY, options=SCORED)
    body, calls = model.body, 0

    def interrupted(*inputs: Tensor, **options: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return body(*inputs, **options)

    monkeypatch.setattr(model, "body", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(batch)
    run(batch)
    assert batch.prompt_logprobs[text] == expected


def test_logits_that_are_not_finite_end_their_own_text_alone() -> None:
    model = make_model(positions="learned", tie_embeddings=False, block_size=64).float()
    with torch.no_grad():
        model.embedding.weight[7] = torch.nan
    batch = batch_of(model, "eager")
    [good, bad] = batch.add([[1, 2, 3], [1, 7, 3]], GREEDY, options=SCORED)
    texts = run(batch)
    assert len(texts[good]) == 3
    assert len(batch.prompt_logprobs[good]) == 2
    assert isinstance(batch.failed[bad], ClearheadError)
    assert bad not in batch.prompt_logprobs


def test_a_prompt_that_cannot_be_read_whole_is_not_scored() -> None:
    batch = batch_of(make_model(positions="rope"), "eager")
    with pytest.raises(InputError, match="25 tokens cannot be scored: the model's context has 24"):
        batch.add([[1] * 24, [1] * 25], GREEDY, options=SCORED)
    assert not batch.live
    with pytest.raises(UsageError, match="`prompt_logprobs` must be at least 0"):
        TextOptions(prompt_logprobs=-1)
