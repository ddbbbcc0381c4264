"""A beam search by native code equals the one by the model's own call, over every choice of a translator."""

import copy
import ctypes
import math

import pytest
import torch
from law_models import Choice, assert_same, name
from pair_models import END, NATIVE_PAIR_CHOICES, PAD, Side, make_translator, padded, sentence, some_ids
from torch import Tensor

from clearhead.config import TranslationConfig
from clearhead.errors import ClearheadError
from clearhead.inference.beam import Hypothesis, beam_search
from clearhead.inference.beam_backend import EagerBeamBackend, NativeBeamBackend
from clearhead.models import EncoderDecoder
from clearhead.native import compiler, library, translator
from clearhead.parts import DecoderCache, positions_from_lengths

pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler"),
    pytest.mark.usefixtures("compiled_code"),
]
every_choice = pytest.mark.parametrize("choice", NATIVE_PAIR_CHOICES, ids=name)
VOCABULARIES = [(size, pad_id) for size in (3, 7, 63, 64, 65, 1001) for pad_id in (None, PAD)]
BAD = [(bad, position) for bad in (math.nan, math.inf, -math.inf) for position in (0, 63, 99)]
SOURCES = [sentence(1 + 5 * n % 13, seed=n) for n in range(7)]


def compiled(model: EncoderDecoder) -> NativeBeamBackend:
    engine = library(next(model.parameters()).dtype, build=True, on_notice=print)
    assert isinstance(engine, ctypes.CDLL)
    return NativeBeamBackend(model, engine)


def ragged_sources(side: Side) -> tuple[Tensor, Tensor]:
    """Three sources, padded on a side, and their positions."""
    source = padded([some_ids(9), some_ids(6, seed=2), some_ids(1, seed=3)], 9, side)
    return source, positions_from_lengths(torch.tensor([9, 6, 1]), 9, side)


def read(
    model: EncoderDecoder, backend: EagerBeamBackend | NativeBeamBackend, beam: int
) -> tuple[list[Tensor], DecoderCache]:
    """The logits of six steps with hypotheses that take each other's places at random, and the cache after them."""
    memory, cache = backend.begin(*ragged_sources("right"), 1 + 5 * beam)
    draw, lines, logits = torch.Generator().manual_seed(1), torch.ones(3, 1, 1, dtype=torch.bool), list[Tensor]()
    logits.append(backend.forward(some_ids(3, 1), 0, memory, cache, lines))
    for step in range(1, 6):
        parents = torch.randint(lines.shape[1], (3, beam, 1), generator=draw)
        lines = lines.gather(1, parents.expand(-1, -1, lines.shape[2]))
        lines = torch.cat((lines, torch.eye(beam, dtype=torch.bool).expand(3, -1, -1)), dim=2)
        logits.append(backend.forward(some_ids(3, beam, seed=step), step, memory, cache, lines))
    return logits, cache


@every_choice
@pytest.mark.parametrize("side", ["left", "right", None])
@torch.inference_mode()
def test_the_memory_is_the_models(choice: Choice, side: Side | None) -> None:
    model = make_translator(**choice)
    source, positions = ragged_sources(side) if side else (some_ids(3, 9), range(9))
    native, expected = (backend.begin(source, positions, 1) for backend in (compiled(model), EagerBeamBackend(model)))
    real = slice(None) if isinstance(positions, range) else positions >= 0
    assert_same(native[0].states[real], expected[0].states[real])
    assert native[0].positions is positions
    model.decode(some_ids(3, 1), *expected[:1], cache=expected[1])  # projects the memory
    for layer, other in zip(native[1].memory_layers, expected[1].memory_layers, strict=True):
        assert layer.held is not None
        assert other.held is not None
        for actual, right in zip(layer.held, other.held, strict=True):  # (B, H_kv, T_src, K)
            assert_same(actual.transpose(1, 2)[real], right.transpose(1, 2)[real])


@every_choice
@torch.inference_mode()
def test_what_follows_each_hypothesis_is_what_the_model_says(choice: Choice) -> None:
    model = make_translator(**choice)
    (native, cache), (expected, other) = (
        read(model, backend, 3) for backend in (compiled(model), EagerBeamBackend(model))
    )
    for actual, right in zip(native, expected, strict=True):
        assert_same(actual, right)
    assert cache.length == other.length
    for native_layer, layer in zip(cache.layers, other.layers, strict=True):
        assert native_layer.length == layer.length
        assert_same(native_layer.keys, layer.keys)
        assert_same(native_layer.values, layer.values)


def assert_same_texts(translations: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for own, reference in zip(translations, expected, strict=True):
        assert [hypothesis.ids for hypothesis in own] == [hypothesis.ids for hypothesis in reference]
        assert [h.score for h in own] == pytest.approx([h.score for h in reference], rel=1e-9)


@pytest.mark.parametrize(
    ("beam", "choice"), [(1 + n % 6, choice) for n, choice in enumerate(NATIVE_PAIR_CHOICES)], ids=str
)
def test_translations_are_the_plain_searchs(beam: int, choice: Choice) -> None:
    model, options = make_translator(**choice), TranslationConfig(beam_size=beam, n_best=beam)
    expected = beam_search(model, SOURCES, options, end=END)
    assert_same_texts(beam_search(model, SOURCES, options, end=END, backend=compiled(model)), expected)


@pytest.mark.parametrize("choice", NATIVE_PAIR_CHOICES[::4], ids=name)
def test_a_translation_depends_on_no_neighbor_and_on_no_threads(
    choice: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_translator(**choice)
    backend, options = compiled(model), TranslationConfig(beam_size=4, n_best=4)
    alone = [beam_search(model, [source], options, end=END, backend=backend)[0] for source in SOURCES]
    monkeypatch.setattr(translator, "PARALLEL_MIN_MACS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert beam_search(model, SOURCES, options, end=END, backend=backend) == alone, "to the last bit"


@pytest.mark.parametrize(("vocab_size", "pad_id"), VOCABULARIES)
@torch.inference_mode()
def test_the_likeliest_continuations_are_those_of_all(vocab_size: int, pad_id: int | None) -> None:
    model = make_translator(vocab_size=vocab_size, pad_id=pad_id)
    draw = torch.Generator().manual_seed(vocab_size)
    for scale in (0.01, 1, 300):
        logits = torch.randn(5, 4, vocab_size, generator=draw, dtype=torch.float64) * scale + scale
        before = torch.randn(5, 4, generator=draw, dtype=torch.float64)
        before[3, 2:] = -math.inf  # no hypotheses
        for n in (1, 8):
            native, expected = (
                backend.top_continuations(logits, before, n) for backend in (compiled(model), EagerBeamBackend(model))
            )
            real = expected.scores.isfinite()
            assert_same(native.scores[real], expected.scores[real])
            assert (native.scores[~real] == -math.inf).all()
            assert (native.tokens[~real] == (pad_id or 0)).all(), "an end would count"
            for actual, right in zip(native[1:], expected[1:], strict=True):
                assert torch.equal(actual[real], right[real])


@pytest.mark.parametrize(("bad", "position"), BAD)
@torch.inference_mode()
def test_logits_that_are_not_finite_are_refused(bad: float, position: int) -> None:
    logits = torch.randn(3, 2, 100, dtype=torch.float64)
    backend, before = compiled(make_translator(vocab_size=100)), torch.zeros(3, 2, dtype=torch.float64)
    backend.top_continuations(logits, before, 4)
    logits[1, 1, position] = bad
    with pytest.raises(ClearheadError, match="not finite"):
        backend.top_continuations(logits, before, 4)


@torch.inference_mode()
def test_a_default_device_is_not_compiled_codes() -> None:
    model, tokens, tree_mask = (
        make_translator(),
        some_ids(3, 2),
        torch.eye(3, dtype=torch.bool)[None, :2].expand(3, -1, -1),
    )
    tree_mask = tree_mask | (torch.arange(3) == 0)  # all descend from the first column
    (source, positions), backend = ragged_sources("right"), compiled(model)
    results = list[Tensor]()
    for device in ("cpu", "meta"):
        before = torch.zeros(3, 2, dtype=torch.float64)
        with torch.device(device):
            memory, cache = backend.begin(source, positions, 3)
        backend.forward(some_ids(3, 1), 0, memory, cache, torch.ones(3, 1, 1, dtype=torch.bool))
        with torch.device(device):
            logits = backend.forward(tokens, 1, memory, cache, tree_mask)
            results += [logits, *backend.top_continuations(logits, before, 4)]
    assert all(map(torch.equal, results[:4], results[4:]))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", [16, 40, 144])
def test_float32_of_any_width_finds_the_same(width: int) -> None:
    exact = make_translator(n_heads=2, d_model=2 * width, head_dim=width, d_ff=width + 3, vocab_size=203)
    model, options = copy.deepcopy(exact).float(), TranslationConfig(beam_size=5, n_best=5)
    right, eager, native = (
        beam_search(network, SOURCES, options, end=END, backend=backend)
        for network, backend in ((exact, None), (model, None), (model, compiled(model)))
    )
    assert [[hypothesis.ids for hypothesis in best] for best in native] == [[h.ids for h in best] for best in eager]
    scores = (torch.tensor([[hypothesis.score for hypothesis in best] for best in t]) for t in (right, eager, native))
    expected, *others = scores
    errors = [float((actual - expected).abs().max()) for actual in others]
    assert errors[1] < max(1e-5, 4 * errors[0]), "float32 in native code is as near as the model's own"
