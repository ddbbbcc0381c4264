"""CTranslate2, where it is installed, finds what our own search finds, over every pair of options that it knows."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from law_models import pairwise
from pair_models import END, PAD, SOURCE_VOCAB_SIZE, make_translator, sentence

from clearhead.config import TranslationConfig
from clearhead.inference.beam import Hypothesis, beam_search, length_penalty
from clearhead.inference.translation_backend import CTranslate2Search, Ids, choose_search
from clearhead.interop.ctranslate2 import ctranslate2_obstacle
from clearhead.models import EncoderDecoder

pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install 'clearhead[ctranslate2]'")

CHOICES = list(
    pairwise(
        {
            "norm_position": ("pre", "post"),
            "positions": ("learned", "sinusoidal"),
            "feedforward": ("relu", "gelu", "gelu_tanh", "silu"),
            "bias": (False, True),
            "qkv_bias": (False, True),
            "tie_embeddings": (False, True),
            "embedding_norm": (False, True),
            "scale_embedding": (False, True),
            "head_bias": (False, True),
            "source_vocab_size": (None, SOURCE_VOCAB_SIZE),
            "n_encoder_layers": (1, 2),
            "decoder_start_id": (None, 3),
            "norm_eps": (1e-5, 1e-2),
        }
    )
)
SOURCES = [sentence(1 + 5 * n % 13, seed=n) for n in range(12)]
UNSURE = Hypothesis([-1], 0.0)
IMPOSSIBLE = -1e4  # as a logit
ROUNDING = 1e-4  # of scores, in nats


def model_of(scale: float = 1, **choice: Any) -> EncoderDecoder:
    """In float32, without padding; with a larger scale its odds are less even, and texts end sooner or never."""
    model = make_translator(**{"pad_id": None, **choice}).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale if parameter.dim() > 1 else 1)
    return model


def compared(model: EncoderDecoder, reference: EncoderDecoder | None = None, **options: Any) -> int:
    """How many translations CTranslate2 finds by itself; each is what our own search finds, with `reference` if any."""
    config = TranslationConfig.read({"engine": "ctranslate2", **options})

    def unsure(sources: Sequence[Ids]) -> list[list[Hypothesis]]:
        return [[UNSURE] for _ in sources]

    translations = CTranslate2Search(model, config, END, unsure, print)(SOURCES)
    expected = beam_search(reference or model, SOURCES, config, end=END)
    pairs = [(a, b) for [a], [b] in zip(translations, expected, strict=True)]
    for hypothesis, ours in pairs:
        if hypothesis != UNSURE:
            assert hypothesis.ids == ours.ids
            assert hypothesis.score == pytest.approx(ours.score, abs=ROUNDING)
    return sum(hypothesis != UNSURE for hypothesis, _ in pairs)


def test_translations_are_equal() -> None:
    several = 0
    for choice in CHOICES:
        for scale in (1, 3):
            model = model_of(scale, **choice)
            assert ctranslate2_obstacle(model.config) is None
            several += compared(model, beam_size=3)
    assert several > 8 * len(CHOICES), "of 24 sentences each"


@pytest.mark.parametrize("beam", [1, 2, 8])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.5])
@pytest.mark.parametrize("longest", [None, 4])
def test_beams_penalties_and_limits(beam: int, alpha: float, longest: int | None) -> None:
    model = model_of(3, **CHOICES[2])  # whose texts end
    several = compared(model, beam_size=beam, length_penalty=alpha, max_new_tokens=longest)
    assert several >= 3


@pytest.mark.parametrize("engine", ["ctranslate2", "ctranslate2-int8"])
def test_padding_is_never_written(engine: str) -> None:
    model = model_of(2, positions="sinusoidal", pad_id=PAD, head_bias=True)
    with torch.no_grad():
        assert model.lm_head.bias is not None
        model.lm_head.bias[[PAD, END]] += 3
    config = TranslationConfig.read({"engine": engine, "beam_size": 3})
    translations = choose_search(model, config, end=END, sentences=len(SOURCES))(SOURCES)
    assert len(translations) == len(SOURCES)
    assert all(PAD not in best.ids and math.isfinite(best.score) for [best] in translations)


def padding_model(bias: float) -> EncoderDecoder:
    """One that knows padding, and holds it as likely as this bias says."""
    model = model_of(3, **{**CHOICES[2], "pad_id": PAD, "head_bias": True})
    with torch.no_grad():
        assert model.lm_head.bias is not None
        model.lm_head.bias[PAD] = bias
    return model


@torch.inference_mode()
def padding_probs(model: EncoderDecoder, source: Ids, ids: Ids) -> torch.Tensor:
    """How likely the model holds padding in the place of each token of a translation, and of its end: (T,)."""
    inputs = torch.tensor([[model.config.first_token(END), *ids]])
    chances: torch.Tensor = model(torch.tensor([source]), inputs)[0].double().softmax(-1)  # (T, V)
    return chances[:, PAD]


@pytest.mark.parametrize("bias", [-2.0, 0.0])
def test_padding_is_out_before_the_odds_are_added_up(bias: float) -> None:
    """So it finds what our own search finds with a model that holds padding for impossible.

    Beside our own search with the model itself, which smoothed labels may have taught a little padding, a score is
    higher by what padding took of each token.
    """
    model, without = padding_model(bias), padding_model(IMPOSSIBLE)
    assert compared(model, without, beam_size=3) >= 3
    config, shifts = TranslationConfig(engine="ctranslate2", beam_size=3), list[float]()
    plain = partial(beam_search, without, config=config, end=END)
    search = CTranslate2Search(model, config, END, plain, print)
    expected = beam_search(model, SOURCES, config, end=END)
    for source, [hypothesis], [ours] in zip(SOURCES, search(SOURCES), expected, strict=True):
        if hypothesis.ids == ours.ids:
            probs = padding_probs(model, source, ours.ids)
            shifts.append(-torch.log1p(-probs).sum().item() / length_penalty(len(probs), config.length_penalty))
            assert hypothesis.score - ours.score == pytest.approx(shifts[-1], abs=ROUNDING)
    assert len(shifts) > len(SOURCES) / 2
    assert 20 * ROUNDING < max(shifts) < 0.1


def test_no_sentences() -> None:
    config = TranslationConfig(engine="ctranslate2")
    assert choose_search(model_of(positions="learned"), config, end=END, sentences=0)([]) == []
