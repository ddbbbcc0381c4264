"""A batch that texts join and leave at any time: each is what it would be alone, and nothing is read twice."""

from collections.abc import Iterator

import pytest
import torch
from law_models import NATIVE_CHOICES, VOCAB_SIZE, Choice, assert_same, make_model, name, random_ids

from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.inference import GenerationBatch, stream_ids
from clearhead.models import BigramLM, CausalLM
from clearhead.parts import positions_from_lengths

BLOCK_SIZE = 10
PLAIN, NGRAMS, RUN = EngineConfig(engine="eager"), EngineConfig(draft="ngrams"), EngineConfig(draft="a run")
GREEDY = SamplingConfig(greedy=True, max_new_tokens=15)
WARM = SamplingConfig(seed=3, temperature=1.5, max_new_tokens=22)
PENALIZED = SamplingConfig(seed=4, temperature=1.2, top_p=0.9, repetition_penalty=1.3, max_new_tokens=9)
# When texts join -> their prompts, some longer than a block, how they are drawn, and whether a token ends them.
VISITS: dict[int, tuple[list[list[int]], SamplingConfig, int | None]] = {
    0: ([random_ids(4, seed=1).tolist()], GREEDY, None),
    3: ([random_ids(13, seed=2).tolist(), random_ids(1, seed=3).tolist()], WARM, VOCAB_SIZE - 1),
    4: ([[1, 2, 3], [1, 2, 3]], PENALIZED, None),
    21: ([random_ids(9, seed=4).tolist()], WARM, None),  # when few or none are left
    60: ([random_ids(7, seed=5).tolist()], GREEDY, None),
}


def together(batch: GenerationBatch) -> Iterator[tuple[int, list[int]]]:
    """The tokens of all visits, as they come."""
    with batch:
        for step in range(90):
            if step in VISITS:
                batch.add(*VISITS[step])
            live = batch.live
            written = batch.step() if live else {}
            assert written.keys() == live
            assert all(tokens or text not in batch.live for text, tokens in written.items())
            yield from written.items()
        assert not batch.live


def alone(model: CausalLM, engine: EngineConfig = PLAIN, draft: CausalLM | None = None) -> dict[int, list[int]]:
    texts: dict[int, list[int]] = {}
    for prompts, config, end in VISITS.values():
        first = len(texts)
        texts |= {first + row: [] for row in range(len(prompts))}
        for row, prompt in enumerate(prompts):
            copies = [prompt] * (1 + prompts[:row].count(prompt))  # an equal prompt's second text
            for column in stream_ids(model, copies, config, end=end, engine=engine, draft=draft):
                texts[first + row] += [token for copy, token in column.items() if copy == len(copies) - 1]
    return texts


@pytest.mark.parametrize("choice", NATIVE_CHOICES[::3], ids=name)
def test_a_text_in_a_batch_is_the_text_alone(choice: Choice) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    texts = dict[int, list[int]]()
    for text, tokens in together(GenerationBatch(model, PLAIN)):
        texts.setdefault(text, []).extend(tokens)
    assert texts == alone(model)


@pytest.mark.parametrize(
    "draft", [None, {"block_size": 7, "logit_ngrams": 2}, {"sliding_window": 3, "positions": "alibi"}]
)
@pytest.mark.parametrize("choice", NATIVE_CHOICES[::21], ids=name)
def test_guesses_come_and_go_with_the_texts(choice: Choice, draft: Choice | None) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    small = None if draft is None else make_model(**draft)
    texts = dict[int, list[int]]()
    engine = NGRAMS if small is None else RUN
    for text, tokens in together(GenerationBatch(model, engine, draft=small)):
        texts.setdefault(text, []).extend(tokens)
    assert texts == alone(model, engine, small)
    assert draft or texts == alone(model)


def test_a_bigram_model_has_visitors_too() -> None:
    model = BigramLM(ModelConfig(architecture="bigram", vocab_size=VOCAB_SIZE, block_size=4))
    texts = dict[int, list[int]]()
    for text, tokens in together(GenerationBatch(model)):
        texts.setdefault(text, []).extend(tokens)
    assert texts == alone(model)


def shapes_read(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The rows and columns of each call of the model from now on."""
    shapes, hidden = list[tuple[int, ...]](), model.body

    def counted(ids: torch.Tensor, **options: object) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return hidden(ids, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(model, "body", counted)
    return shapes


def test_nothing_is_read_twice_and_those_who_left_are_thrown_out_when_they_are_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model(positions="rope", block_size=64)
    shapes = shapes_read(model, monkeypatch)
    with GenerationBatch(model) as batch:
        batch.add([[1, 2, 3], [4, 5]], GREEDY)
        batch.step()
        batch.step()
        batch.add([[6, 7, 8, 9, 1]], GREEDY)
        batch.step()
        batch.step()
        batch.cancel([0])
        assert batch.step().keys() == {1, 2}
        batch.cancel([1])
        assert batch.step().keys() == {2}
        assert batch.live == {2}
    assert shapes == [(2, 3), (2, 1), (2, 1), (1, 5), (3, 1), (3, 1), (1, 1)]


def test_one_that_left_and_is_full_is_thrown_out_and_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, notices = make_model(positions="rope", block_size=8), list[str]()
    shapes = shapes_read(model, monkeypatch)
    with GenerationBatch(model, PLAIN, on_notice=notices.append) as batch:
        full, *_ = batch.add([[1] * 7, [2], [3]], GREEDY)
        batch.step()
        batch.cancel([full])
        for _ in range(3):
            assert batch.step().keys() == {1, 2}
    assert shapes == [(3, 7), (3, 1), (2, 1), (2, 1)]
    assert not notices, "none of these texts has outgrown the model"


def test_a_text_that_is_dropped_before_it_begins_is_never_written() -> None:
    with GenerationBatch(make_model(positions="rope")) as batch:
        batch.cancel(batch.add([[1], [2]], GREEDY)[:1])
        assert batch.step().keys() == {1}


@pytest.mark.parametrize("choice", NATIVE_CHOICES[::6], ids=name)
@torch.inference_mode()
def test_rows_of_two_caches_go_on_as_they_would_have(choice: Choice) -> None:
    model, ids, other = make_model(**choice), random_ids(2, 4), random_ids(2, 9, seed=1)
    for first, second, lengths in ((ids, other, [9, 6]), (other, ids, [4, 1])):
        caches, T = [model.new_cache(2, 12), model.new_cache(2, 10)], second.shape[1]
        model(first, cache=caches[0])
        model(second, positions=positions_from_lengths(torch.tensor(lengths), T, side="left"), cache=caches[1])
        caches[0].append([caches[1]], (2, 2))
        caches[0].resize(14)
        more = random_ids(4, 3, seed=2)
        logits = model(more, cache=caches[0])
        texts = [*first, *(row[T - length :] for row, length in zip(second, lengths, strict=True))]
        for row, text in enumerate(texts):
            assert_same(logits[row], model(torch.cat((text, more[row]))[None])[0, len(text) :])
