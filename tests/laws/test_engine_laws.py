"""Native code equals the model's own call, over every choice and in float64; nobody's text depends on the others'."""

import copy
import ctypes
import statistics
from typing import Any

import pytest
import torch
from law_models import NATIVE_CHOICES, VOCAB_SIZE, Choice, assert_same, make_model, name, random_ids, slots_read
from test_batch_laws import alone, together
from test_draft_laws import Oracle
from torch import Tensor

from clearhead.config import Dtype, EngineConfig, SamplingConfig
from clearhead.inference import GenerationBatch, batching, decoder_backend, kv_context, stream_ids
from clearhead.inference.decoder_backend import DecoderBackend, EagerDecoderBackend, NativeDecoderBackend
from clearhead.inference.requests import new_requests
from clearhead.models import CausalLM, DecoderLM
from clearhead.models.quantization import quantize_model
from clearhead.native import compiler, library
from clearhead.native import decoder as native_decoder
from clearhead.parts import SlotRows

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler"),
    pytest.mark.usefixtures("compiled_code"),
]
every_choice = pytest.mark.parametrize("choice", NATIVE_CHOICES, ids=name)
BLOCK_SIZE, NEW_TOKENS = 10, 8  # rows that are full slide at once
PROMPTS = [random_ids(length, seed=length).tolist() for length in (4, 1, 13, 10, 4)]  # two longer than a block
WIDTHS: tuple[Dtype, ...] = ("float32", "bfloat16", "int8")
DRAWINGS: list[dict[str, float]] = [
    {"greedy": True},
    {"greedy": True, "repetition_penalty": 3.0},
    {"temperature": 2.0},
    {"temperature": 0.1, "repetition_penalty": 50.0},
    {"top_k": 1},
    {"top_k": 3, "temperature": 3.0},
    {"top_k": 1000, "top_p": 1.0},
    {"top_p": 0.6, "temperature": 3.0},
    {"top_p": 1e-9},
    {"min_p": 0.05, "temperature": 1.0},
    {"min_p": 0.2, "temperature": 1.5},
    {"min_p": 0.5, "temperature": 3.0},
    {"min_p": 1.0},
    {"top_k": 5, "top_p": 0.9, "min_p": 0.05, "temperature": 4.0, "repetition_penalty": 2.0},
]


def compiled(model: DecoderLM, weights: Dtype = "float32") -> NativeDecoderBackend:
    engine = library(next(model.parameters()).dtype, build=True, on_notice=print)
    assert isinstance(engine, ctypes.CDLL)
    return NativeDecoderBackend(model, weights, engine)


def written(model: CausalLM, prompts: list[list[int]], how: dict[str, str], **options: object) -> list[list[int]]:
    texts: list[list[int]] = [[] for _ in prompts]
    notices: list[str] = []
    config = SamplingConfig.read({"max_new_tokens": NEW_TOKENS, "greedy": True}, options)
    end = VOCAB_SIZE - 1 if not config.greedy else None
    settings = EngineConfig.read(how)
    for column in stream_ids(model, prompts, config, end=end, engine=settings, on_notice=notices.append):
        for row, token in column.items():
            texts[row].append(token)
    assert not [notice for notice in notices if "without compiled" in notice], "native code was not used"
    return texts


ROWS = 5  # multiplied four at a time, and alone


LENGTHS = [12, 3, 7, 1, 9]


def half_read(model: DecoderLM, counts: list[int] | None = None) -> SlotRows:
    """Rows of unequal lengths. `counts`: how many of a call's tokens each of them then has."""
    cache, slots = slots_read(model, random_ids(ROWS, 12), LENGTHS, 20)
    return cache.rows(slots[::-1], counts)  # not in the order of the slots


def assert_same_caches(actual: SlotRows, expected: SlotRows) -> None:
    assert actual.lengths == expected.lengths
    for layer, other in zip(actual.layers, expected.layers, strict=True):
        assert_same(layer.keys, other.keys)
        assert_same(layer.values, other.values)


@every_choice
@torch.inference_mode()
def test_compiled_code_is_the_models_call(choice: Choice) -> None:
    model = make_model(**choice)
    twin, cache, other = compiled(model), half_read(model), half_read(model)
    for t in range(6):
        more = random_ids(ROWS, seed=t)
        assert_same(twin.forward(more[:, None], cache), EagerDecoderBackend(model).forward(more[:, None], other))
    assert_same_caches(cache, other)


@every_choice
@torch.inference_mode()
def test_tokens_read_together_are_those_read_one_by_one(choice: Choice) -> None:
    model, more = make_model(**choice), random_ids(ROWS, 6, seed=1)
    twin, caches = compiled(model), [half_read(model) for _ in range(4)]
    together = twin.forward(more, caches[0], logits_to_keep=6)
    assert_same(together, EagerDecoderBackend(model).forward(more, caches[1], logits_to_keep=6))
    assert_same_caches(*caches[:2])
    for width, cache in ((1, caches[2]), (4, caches[3])):
        pieces = [
            twin.forward(piece, cache, logits_to_keep=piece.shape[1]) for piece in torch.split(more, width, dim=1)
        ]
        assert torch.equal(torch.cat(pieces, dim=1), together), "the same bits"
        assert all(map(torch.equal, cache.tensors, caches[0].tensors))


@every_choice
@torch.inference_mode()
def test_padding_is_passed_over(choice: Choice) -> None:
    model, more, counts = make_model(**choice), random_ids(ROWS, 4, seed=1), [4, 1, 0, 3, 2]
    twin, rows, other = compiled(model), half_read(model, counts), half_read(model, counts)
    real = torch.arange(4) < torch.tensor(counts)[:, None]  # (B, T)
    actual, expected = (
        twin.forward(more, rows, logits_to_keep=4),
        EagerDecoderBackend(model).forward(more, other, logits_to_keep=4),
    )
    changed = twin.forward(more.where(real, 0), half_read(model, counts), logits_to_keep=4)
    assert_same(actual[real], expected[real])
    assert torch.equal(actual[real], changed[real]), "padding is anything"
    assert_same_caches(rows, other)
    assert rows.tokens is None or torch.equal(rows.tokens, torch.as_tensor(other.tokens))


@torch.inference_mode()
def test_embeddings_are_scaled() -> None:
    model, more = make_model(scale_embedding=True), random_ids(ROWS, seed=1)
    actual, expected = (
        backend.forward(more[:, None], half_read(model)) for backend in (compiled(model), EagerDecoderBackend(model))
    )
    assert_same(actual, expected)


@pytest.mark.parametrize("options", DRAWINGS, ids=str)
def test_tokens_are_drawn_from_many_as_elsewhere(options: dict[str, float]) -> None:
    model = make_model(positions="rope", vocab_size=5003, n_layers=1, block_size=64)
    with torch.no_grad():
        model.embedding.weight.mul_(0.3)  # so that many are likely
    settings = {"greedy": False, "seed": 5, "max_new_tokens": 20} | options
    expected = written(model, PROMPTS[:2], {"engine": "eager"}, **settings)
    assert written(model, PROMPTS[:2], {"engine": "native"}, **settings) == expected


@torch.inference_mode()
def test_a_broken_model_is_broken_in_compiled_code_too() -> None:
    for weights in WIDTHS:
        model = make_model(n_heads=2, d_model=32).float()
        twin, more = compiled(model, weights), random_ids(ROWS, seed=1)
        cache = half_read(model)
        cache.layers[0].values[cache.slots[1]] = torch.nan
        broken = twin.forward(more[:, None], cache).isnan()
        assert broken[1].all()
        assert not broken[[0, 2, 3, 4]].any()


@torch.inference_mode()
def test_a_default_device_is_not_compiled_codes() -> None:
    model, more = make_model(positions="rope", sliding_window=3).float(), random_ids(ROWS, 6, seed=1)
    cache, other, twin = model.new_cache(ROWS, 6), model.new_cache(ROWS, 6), compiled(model)
    with torch.device("meta"):
        logits = twin.forward(more, cache, logits_to_keep=6)
    assert torch.equal(logits, twin.forward(more, other, logits_to_keep=6))


@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rope"])
def test_the_shortest_blocks_are_compiled_too(block_size: int, positions: str) -> None:
    model = make_model(positions=positions, block_size=block_size)
    assert written(model, [[1, 2]], {"engine": "native"}) == written(model, [[1, 2]], {"engine": "eager"})


@pytest.mark.parametrize("choice", NATIVE_CHOICES[::5], ids=name)
@torch.inference_mode()
def test_what_a_row_gets_does_not_depend_on_the_others_or_on_threads(
    choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = WIDTHS[NATIVE_CHOICES.index(choice) % 3]
    model = quantize_model(make_model(**choice).float(), weights)
    # 19 rows are multiplied eight, four, two at a time, and alone
    twin, more = compiled(model, weights), random_ids(19, 3, seed=1)
    cache, slots = slots_read(model, random_ids(19, 12), [row % 12 + 1 for row in range(19)], 20)

    def logits_of(rows: Tensor) -> Tensor:
        mine = cache.rows([slots[row] for row in rows])  # what is written there is the same each time
        return twin.forward(more[rows], mine, logits_to_keep=2)

    everything = torch.arange(19)
    together = logits_of(everything)
    for row in (0, 7, 16, 18):
        assert torch.equal(logits_of(everything[row : row + 1])[0], together[row])
    monkeypatch.setattr(native_decoder, "PARALLEL_MIN_MACS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    for small in (0, native_decoder.SMALL):  # threads share each step; each has rows of its own
        monkeypatch.setattr(native_decoder, "SMALL", small)
        assert torch.equal(logits_of(everything), together)


@pytest.mark.parametrize("choice", NATIVE_CHOICES[::5], ids=name)
@torch.inference_mode()
def test_many_tokens_at_once_are_what_single_ones_are(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    twin = compiled(make_model(**choice).float())
    texts = new_requests(0, random_ids(19, 3).tolist(), SamplingConfig(seed=1, temperature=1.5, repetition_penalty=1.3))
    monkeypatch.setattr(native_decoder, "PARALLEL_MIN_MACS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)

    def decoded(max_steps: int) -> tuple[list[list[int]], list[Tensor]]:
        own, cache = copy.deepcopy(texts), twin.model.new_cache(19, 12)
        last, tokens = random_ids(19, seed=2), torch.empty(19, 0, dtype=torch.int64)
        while tokens.shape[1] < 12:
            new = twin.decode(last, cache, own, max_steps)
            for text, more in zip(own, new, strict=True):
                text.append(more)
            tokens = torch.cat((tokens, torch.tensor(new)), dim=1)
            last = tokens[:, -1]
        return tokens.tolist(), cache.tensors

    small = native_decoder.SMALL
    monkeypatch.setattr(native_decoder, "SMALL", 0)
    tokens, held = decoded(1)
    for max_steps, limit in ((4, 0), (6, small), (12, small)):
        monkeypatch.setattr(native_decoder, "SMALL", limit)
        more, other = decoded(max_steps)
        assert more == tokens
        assert all(map(torch.equal, held, other))


@pytest.mark.parametrize("options", DRAWINGS, ids=str)
def test_tokens_are_drawn_as_elsewhere(options: dict[str, float]) -> None:
    model = make_model(positions="rope", tie_embeddings=False, block_size=64)
    assert model.lm_head.weight is not None
    with torch.no_grad():
        model.lm_head.weight[5:] = 0  # tokens that are equally likely, to the last bit
    settings = {"greedy": False, "seed": 5, "max_new_tokens": 40} | options
    expected = written(model, PROMPTS, {"engine": "eager"}, **settings)
    assert written(model, PROMPTS, {"engine": "native"}, **settings) == expected


AMONG_OTHERS = [
    test_what_a_row_gets_does_not_depend_on_the_others_or_on_threads,
    test_many_tokens_at_once_are_what_single_ones_are,
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [16, 40, 128, 144])
@pytest.mark.parametrize("weights", WIDTHS)
@torch.inference_mode()
def test_float32_of_any_width_is_as_near_as_the_models_own(width: int, weights: Dtype) -> None:
    model = make_model(n_heads=2, d_model=2 * width, head_dim=width, d_ff=width + 3, vocab_size=11).float()
    model = quantize_model(model, weights)
    exact = copy.deepcopy(model).double()
    backends: list[DecoderBackend] = [EagerDecoderBackend(exact), EagerDecoderBackend(model), compiled(model, weights)]
    errors: list[list[float]] = []  # of the model's own call, and of compiled code
    for seed in range(6):
        caches = [half_read(network) for network in (exact, model, model)]
        for t in (1, 1, 2, 4):
            more = random_ids(ROWS, t, seed=10 * seed + t)
            right, *others = (
                backend.forward(more, cache, logits_to_keep=t) for backend, cache in zip(backends, caches, strict=True)
            )
            errors.append([float((logits - right).abs().max() / right.abs().max()) for logits in others])
    own, native = map(statistics.median, zip(*errors, strict=True))
    assert native < max(1e-6, 2 * own)


@every_choice
def test_both_engines_write_the_same_text(choice: Choice) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    for prompts in (PROMPTS[2:3], PROMPTS[:3]):  # one row; several, of which each slides at a time of its own
        assert written(model, prompts, {"engine": "native"}) == written(model, prompts, {"engine": "eager"})


@pytest.mark.parametrize("choice", NATIVE_CHOICES[::7], ids=name)
def test_rows_that_end_leave_the_others_as_they_were(choice: Choice) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    options = {"greedy": False, "temperature": 1.5, "seed": 3, "max_new_tokens": 14}
    texts = written(model, PROMPTS, {"engine": "native"}, **options)
    assert texts == written(model, PROMPTS, {"engine": "eager"}, **options)
    assert len(set(map(len, texts))) > 1, "rows that end at the same time would show little"


@pytest.mark.parametrize("choice", NATIVE_CHOICES[::9], ids=name)
def test_texts_join_and_leave_compiled_code_as_well(choice: Choice) -> None:
    model, texts = make_model(**choice, block_size=BLOCK_SIZE), dict[int, list[int]]()
    for text, tokens in together(GenerationBatch(model, EngineConfig(engine="native"))):
        texts.setdefault(text, []).extend(tokens)
    assert texts == alone(model)


def test_a_text_that_has_ended_shortens_no_call_of_the_others() -> None:
    with GenerationBatch(make_model(positions="rope", block_size=64), EngineConfig(engine="native")) as batch:
        batch.add([[1] * 40], SamplingConfig(greedy=True, max_new_tokens=2))
        batch.add([[2], [3]], SamplingConfig(greedy=True, max_new_tokens=50))
        assert [len(batch.step()[1]) for _ in range(5)] == [1, 16, 16, 16, 1]
        assert not batch.live


@pytest.mark.parametrize("choice", NATIVE_CHOICES[::6], ids=name)
def test_guesses_that_compiled_code_reads_change_nothing(monkeypatch: pytest.MonkeyPatch, choice: Choice) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    expected = written(model, PROMPTS, {"engine": "eager"}, max_new_tokens=16)
    oracle = Oracle(expected)
    monkeypatch.setattr(batching, "drafter_for", lambda *arguments: oracle)
    assert written(model, PROMPTS, {"engine": "native", "draft": "ngrams"}, max_new_tokens=16) == expected
    assert oracle.right >= 5


@pytest.mark.parametrize(
    "draft", [{"block_size": 7, "logit_ngrams": 2}, {"sliding_window": 3, "positions": "alibi"}], ids=str
)
def test_a_draft_model_is_compiled_too(draft: Choice) -> None:
    model, small = make_model(positions="rope", block_size=BLOCK_SIZE), make_model(**draft)
    texts: list[dict[int, list[int]]] = [{}, {}]
    engines = EngineConfig(engine="eager", draft="a run"), EngineConfig(engine="native", draft="a run")
    for engine, by_name in zip(engines, texts, strict=True):
        for text, tokens in together(GenerationBatch(model, engine, draft=small)):
            by_name.setdefault(text, []).extend(tokens)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("weights", WIDTHS[1:])
@pytest.mark.parametrize("choice", NATIVE_CHOICES[::12], ids=name)
def test_rounded_matrices_are_the_same_in_both_engines(choice: Choice, weights: str) -> None:
    model = make_model(**choice, block_size=BLOCK_SIZE)
    for prompts in (PROMPTS[1:2], PROMPTS[:2]):
        texts = written(model, prompts, {"engine": "native", "dtype": weights})
        assert texts == written(model, prompts, {"engine": "eager", "dtype": weights})


@pytest.mark.parametrize("positions", ["rope", "alibi"])
@pytest.mark.parametrize("rows", [slice(2, 3), slice(3)])
def test_columns_that_left_the_window_make_room(monkeypatch: pytest.MonkeyPatch, positions: str, rows: slice) -> None:
    monkeypatch.setattr(kv_context, "PREFILL_TOKENS", 6)  # and so little room
    model = make_model(positions=positions, sliding_window=5, block_size=BLOCK_SIZE)
    texts = written(model, PROMPTS[rows], {"engine": "native"}, max_new_tokens=40)
    assert texts == written(model, PROMPTS[rows], {"engine": "eager"}, max_new_tokens=40)


@pytest.mark.parametrize("choice", NATIVE_CHOICES[::9], ids=name)
@torch.inference_mode()
def test_a_long_prompt_is_read_by_the_models_own_call(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_backend, "FEW", 8 * 8)
    model, more, called = make_model(**choice), random_ids(ROWS, 5, seed=1), list[int]()
    hidden = model.body

    def counted(ids: Tensor, **options: Any) -> Tensor:
        called.append(ids.shape[1])
        return hidden(ids, **options)

    twin, rows = compiled(model), [*more[:2].tolist(), *random_ids(3, 9, seed=2).tolist()]
    expected = [kv_context.KVContext(model).prefill([row], 4)[0] for row in rows]
    monkeypatch.setattr(model, "body", counted)
    beside = kv_context.KVContext(model, backend=twin)
    for logits, right in zip(beside.prefill(rows, 4), expected, strict=True):
        assert_same(logits, right)
    assert called == [9, 9, 9], "each by itself"
    beside.forward([[1]] * 5)
    assert called == [9, 9, 9]
