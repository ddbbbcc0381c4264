"""A batch that texts join and leave at any time: each is what it would be alone, and nothing is read twice."""

from collections.abc import Iterator

import pytest
import torch
from law_models import NATIVE_CHOICES, VOCAB_SIZE, Choice, make_model, name, random_ids

from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.errors import UsageError
from clearhead.inference import Engine, GenerationBatch, TextOptions, stream_ids
from clearhead.inference.decoder_backend import NativeDecoderBackend
from clearhead.models import BigramLM, CausalLM
from clearhead.native import compiler
from clearhead.parts import DecoderCache

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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("choice", NATIVE_CHOICES[::3], ids=name)
def test_a_text_in_a_batch_is_the_text_alone(choice: Choice) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    texts = dict[int, list[int]]()
    for text, tokens in together(GenerationBatch(model, PLAIN)):
        texts.setdefault(text, []).extend(tokens)
    assert texts == alone(model)


@pytest.mark.sampled(2)
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


def test_nothing_is_read_twice_and_those_who_left_are_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert shapes == [(1, 3), (1, 2), (2, 1), (2, 1), (1, 5), (3, 1), (2, 1), (1, 1)]


def test_one_that_left_and_is_full_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, notices = make_model(positions="rope", block_size=8), list[str]()
    shapes = shapes_read(model, monkeypatch)
    with GenerationBatch(model, PLAIN, on_notice=notices.append) as batch:
        full, *_ = batch.add([[1] * 7, [2], [3]], GREEDY)
        batch.step()
        batch.cancel([full])
        for _ in range(3):
            assert batch.step().keys() == {1, 2}
    assert shapes == [(1, 7), (2, 1), (2, 1), (2, 1), (2, 1)]
    assert not notices, "none of these texts has outgrown the model"


def test_a_text_that_is_dropped_before_it_begins_is_never_written() -> None:
    with GenerationBatch(make_model(positions="rope")) as batch:
        batch.cancel(batch.add([[1], [2]], GREEDY)[:1])
        assert batch.step().keys() == {1}


@pytest.mark.parametrize("draft", [None, "ngrams"])
def test_texts_wait_for_a_slot_and_nothing_held_is_copied(monkeypatch: pytest.MonkeyPatch, draft: str | None) -> None:
    model = make_model(positions="rope", block_size=BLOCK_SIZE)
    texts, rooms = dict[int, list[int]](), list[tuple[int, ...]]()
    make = model.new_cache
    batch = GenerationBatch(model, EngineConfig(engine="eager", draft=draft), slots=2)

    def noted(*size: int) -> DecoderCache:
        rooms.append(size)
        return make(*size)

    monkeypatch.setattr(model, "new_cache", noted)
    shapes = shapes_read(model, monkeypatch)
    with batch:
        for prompts, config, end in VISITS.values():
            batch.add(prompts, config, end)
        while batch.live:
            for text, tokens in batch.step().items():
                texts.setdefault(text, []).extend(tokens)
    assert max(rows for rows, _ in shapes) == 2
    assert not rooms, "all room was reserved at the start"
    assert texts == alone(model)


@pytest.mark.parametrize("draft", [None, "ngrams"])
def test_a_long_prompt_is_read_in_pieces_while_others_go_on(monkeypatch: pytest.MonkeyPatch, draft: str | None) -> None:
    model, texts = make_model(positions="rope", block_size=64), dict[int, list[int]]()
    prompts = [[1, 2], random_ids(19, seed=1).tolist(), [3], random_ids(4, seed=2).tolist()]
    batch = GenerationBatch(model, EngineConfig(engine="eager", draft=draft), slots=8, prompt_tokens=5)
    shapes, tokens_between = shapes_read(model, monkeypatch), list[int]()
    with batch:
        batch.add(prompts[:1], GREEDY)
        while batch.live:
            before, begun = len(shapes), set(texts)
            written = batch.step()
            assert begun & batch.live <= written.keys(), "nobody waits for the prompt of another"
            tokens_between.append(sum(rows * columns for rows, columns in shapes[before:][bool(begun) :]))
            for text, tokens in written.items():
                texts.setdefault(text, []).extend(tokens)
            if len(tokens_between) == 2:
                batch.add(prompts[1:], GREEDY)
    assert max(tokens_between) == 5
    assert texts == {row: [*alone_text(model, prompt)] for row, prompt in enumerate(prompts)}


def alone_text(model: CausalLM, prompt: list[int]) -> Iterator[int]:
    for column in stream_ids(model, [prompt], GREEDY, engine=PLAIN):
        yield column[0]


def test_one_that_leaves_while_it_is_read_leaves_its_slot() -> None:
    model, texts = make_model(positions="rope", block_size=64), dict[int, list[int]]()
    with GenerationBatch(model, PLAIN, slots=1, prompt_tokens=4) as batch:
        [long] = batch.add([random_ids(20, seed=1).tolist()], GREEDY)
        for _ in range(2):
            assert batch.step() == {}
        batch.cancel([long])
        [name] = batch.add([[1, 2]], GREEDY)
        while batch.live:
            for text, tokens in batch.step().items():
                texts.setdefault(text, []).extend(tokens)
    assert texts == {name: [*alone_text(model, [1, 2])]}


NATIVE = pytest.param("native", marks=pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler"))


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("compiled_code")
@pytest.mark.parametrize("how", ["eager", NATIVE])
@pytest.mark.parametrize("draft", [None, "ngrams"])
@pytest.mark.parametrize("when", ["in its prompt", "later"])
def test_a_text_that_fails_leaves_the_others_as_they_were(when: str, draft: str | None, how: str) -> None:
    model, texts = make_model(positions="rope", block_size=64, tie_embeddings=False), dict[int, list[int]]()
    for seed in range(99):  # until a token is met by one text alone
        prompts = random_ids(3, 4, seed=seed).tolist()
        expected = [[*alone_text(model, prompt)] for prompt in prompts]
        met = [
            {*prompt} if when == "in its prompt" else {*text[1:-2]}
            for prompt, text in zip(prompts, expected, strict=True)
        ]
        bad = met[1] - {token for row in (0, 2) for token in (*prompts[row], *expected[row])}
        if bad and (when == "in its prompt" or not bad & {*prompts[1]}):
            break
    engine = Engine(model, EngineConfig.read({"engine": how} | ({"draft": draft} if draft else {})))
    backend = engine.backend(100)  # made before the model is broken, as no broken one is
    with torch.no_grad():
        model.embedding.weight[[*bad]] = torch.nan
    with GenerationBatch(model, engine) as batch:
        names = batch.add(prompts, GREEDY)
        while batch.live:
            for text, tokens in batch.step().items():
                texts.setdefault(text, []).extend(tokens)
    assert isinstance(backend, NativeDecoderBackend) == (how == "native")
    assert batch.failed.keys() == {names[1]}
    assert "not finite" in str(batch.failed[names[1]])
    assert [texts[names[0]], texts[names[2]]] == [expected[0], expected[2]]
    written = texts.get(names[1], [])
    assert written == expected[1][: len(written)]
    assert bool(written) == (when == "later")


def test_who_takes_the_slot_of_one_that_failed_is_not_hurt() -> None:
    model, texts = make_model(positions="rope", block_size=64, tie_embeddings=False), dict[int, list[int]]()
    bad = VOCAB_SIZE - 1
    long, short, options = random_ids(30, seed=1).remainder(bad).tolist(), [1, 2], TextOptions(logit_bias={bad: -1e9})
    with GenerationBatch(model, PLAIN) as batch:
        [name] = batch.add([short], GREEDY, options=options)
        expected = run(batch)[name]
    with torch.no_grad():
        model.embedding.weight[bad] = torch.nan
    with GenerationBatch(model, PLAIN, slots=2) as batch:
        batch.add([long], SamplingConfig(greedy=True, max_new_tokens=30), options=options)
        [broken] = batch.add([[*range(VOCAB_SIZE)] * 2], GREEDY)
        while broken not in batch.failed:
            batch.step()
        [name] = batch.add([short], GREEDY, options=options)
        texts = run(batch)
    assert batch.failed.keys() == {broken}
    assert texts[name] == expected


def run(batch: GenerationBatch) -> dict[int, list[int]]:
    """The tokens that each text gains until all have ended."""
    texts = dict[int, list[int]]()
    while batch.live:
        for text, tokens in batch.step().items():
            texts.setdefault(text, []).extend(tokens)
    return texts


def test_a_drafter_that_fails_is_not_asked_again() -> None:
    model, draft, notices = make_model(positions="rope", block_size=64), make_model(positions="rope"), list[str]()
    with torch.no_grad():
        draft.embedding.weight[3:] = torch.nan
    prompts = [[1, 2], [4, 5, 6]]
    with GenerationBatch(model, RUN, draft=draft, on_notice=notices.append) as batch:
        batch.add(prompts, GREEDY)
        texts = run(batch)
    assert texts == {row: [*alone_text(model, prompt)] for row, prompt in enumerate(prompts)}
    assert not batch.failed
    assert [notice for notice in notices if "drafted" in notice]


def test_an_interruption_while_prompts_are_read_loses_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = make_model(positions="rope", block_size=64), [[1, 2], [4, 5, 6]]
    body, calls = model.body, 0

    def interrupted(ids: torch.Tensor, **options: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return body(ids, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(model, "body", interrupted)
    with GenerationBatch(model, PLAIN) as batch:
        batch.add(prompts, GREEDY)
        with pytest.raises(KeyboardInterrupt):
            batch.step()
        texts = run(batch)
    assert texts == {row: [*alone_text(model, prompt)] for row, prompt in enumerate(prompts)}


def test_options_out_of_bounds_are_refused() -> None:
    model = make_model()
    with pytest.raises(UsageError, match="`slots` must be at least 1"):
        GenerationBatch(model, PLAIN, slots=0)
    with pytest.raises(UsageError, match="`prompt_tokens` must be at least 1"):
        GenerationBatch(model, PLAIN, prompt_tokens=0)
    with pytest.raises(UsageError, match="at least 0"):
        TextOptions(logprobs=-1)
    for number in (float("nan"), float("inf")):
        with pytest.raises(UsageError, match="finite"):
            TextOptions(logit_bias={1: number})
        with pytest.raises(UsageError, match="finite"):
            TextOptions(presence_penalty=number)
