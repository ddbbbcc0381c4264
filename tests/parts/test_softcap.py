"""Soft-capped scores: Gemma 2's own attention, the twin's equation, and a clean refusal wherever there is no cap."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.errors import UsageError
from clearhead.inference import stream_ids
from clearhead.interop import obstacle
from clearhead.interop.ctranslate2 import ctranslate2_obstacle
from clearhead.models import DecoderLM
from clearhead.native import compiler
from clearhead.parts import Scoring, attend
from clearhead.parts.masks import additive_from_allowed

B, H, T_q, T_k, K = 2, 4, 6, 9, 8


def draw(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).mul(3).requires_grad_()


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_the_attention_of_gemma_2(n_kv_heads: int, scale: float | None, masked: bool) -> None:
    gemma = pytest.importorskip("transformers.models.gemma2.modeling_gemma2", reason="transformers is not installed")
    parts = draw(B, H, T_q, K, seed=0), draw(B, n_kv_heads, T_k, K, seed=1), draw(B, n_kv_heads, T_k, K, seed=2)
    mask = torch.ones(T_q, T_k, dtype=torch.bool).tril(T_k - T_q) if masked else None
    module: Any = SimpleNamespace(num_key_value_groups=H // n_kv_heads, training=False)
    additive = None if mask is None else additive_from_allowed(mask, torch.float64)[None, None]
    options = {"scaling": K**-0.5 if scale is None else scale, "softcap": 1.5, "dropout": 0.0}
    expected = gemma.eager_attention_forward(module, *parts, additive, **options)[0].transpose(1, 2)  # (B, T, H, K)
    output = attend(*parts, mask=mask, scoring=Scoring(scale, 1.5))
    direction = draw(B, H, T_q, K, seed=3).detach()
    gradients = [torch.autograd.grad(result, parts, direction) for result in (output, expected)]
    torch.testing.assert_close(
        [output, *gradients[0]], [expected, *gradients[1]], rtol=0, atol=1e-5
    )  # float32's softmax


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_the_cap_comes_after_the_scale_and_before_positions_and_masks(biased: bool, causal: bool) -> None:
    query, key, value = (draw(B, H, T_q, K, seed=seed) for seed in range(3))
    bias = draw(H, T_q, T_q, seed=3) if biased else None
    scores = 1.5 * torch.tanh(query @ key.mT * K**-0.5 / 1.5)
    scores = scores if bias is None else scores + bias
    future = torch.ones(T_q, T_q, dtype=torch.bool).triu(1) & causal
    expected = scores.masked_fill(future, -torch.inf).softmax(-1) @ value
    output = attend(query, key, value, mask="causal" if causal else None, bias=bias, scoring=Scoring(softcap=1.5))
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


def test_a_query_that_sees_nothing_yields_zeros() -> None:
    parts = [draw(B, H, T_q, K, seed=seed) for seed in range(3)]
    mask = torch.ones(T_q, T_q, dtype=torch.bool)
    mask[2] = False
    output = attend(*parts, mask=mask, scoring=Scoring(softcap=1.5))
    assert not output[:, :, 2].any()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(output.sum(), parts))


def test_a_high_cap_is_none() -> None:
    query, key, value = (draw(B, H, T_q, K, seed=seed) for seed in range(3))
    output = attend(query, key, value, mask="causal", scoring=Scoring(softcap=1e6))
    torch.testing.assert_close(output, F.scaled_dot_product_attention(query, key, value, is_causal=True))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("T", [8, 100])
def test_bfloat16_is_capped_as_well(T: int, biased: bool) -> None:
    query, key, value = (draw(1, 2, T, K, seed=seed).detach().float() for seed in range(3))
    bias = draw(2, T, T, seed=3).detach().float() if biased else None
    expected = attend(query, key, value, mask="causal", bias=bias, scoring=Scoring(softcap=1.5))
    with torch.autocast("cpu", torch.bfloat16):
        output = attend(query, key, value.bfloat16(), mask="causal", bias=bias, scoring=Scoring(softcap=1.5))
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)


def test_weights_are_dropped() -> None:
    parts = [draw(B, H, 200, K, seed=seed) for seed in range(3)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        outputs = [attend(*parts, dropout=dropout, scoring=Scoring(softcap=1.5)) for dropout in (0.0, 0.5)]
    assert not torch.equal(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[1].mean(), outputs[0].mean(), rtol=0, atol=0.05)


def test_what_has_no_cap_refuses_it_by_its_name() -> None:
    llama = {"norm": "rmsnorm", "positions": "rope", "feedforward": "swiglu"}
    assert obstacle(ModelConfig.read(llama)) is None
    assert obstacle(ModelConfig.read(llama, {"attention_softcap": 50.0})) == "attention_softcap = 50.0 (llama has none)"
    translator = {"architecture": "encoder_decoder", "positions": "sinusoidal"}
    capped = ModelConfig.read(translator, {"attention_softcap": 50.0})
    assert obstacle(capped) == "attention_softcap = 50.0 (pegasus has none)"
    assert ctranslate2_obstacle(capped) == "attention_softcap 50.0"


@pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("engine", ["native", "auto"])
def test_the_native_engine_leaves_it_to_the_model(engine: str) -> None:
    model = DecoderLM(ModelConfig(vocab_size=11, d_model=16, n_layers=1, attention_softcap=2.0)).eval()
    notices: list[str] = []

    def text(engine: str) -> list[dict[int, int]]:
        config = SamplingConfig(greedy=True, max_new_tokens=4)
        how = EngineConfig.read({"engine": engine})
        return list(stream_ids(model, [[1, 2]], config, end=None, engine=how, on_notice=notices.append))

    assert text(engine) == text("eager")
    assert [notice for notice in notices if "attention_softcap = 2.0" in notice] == notices
    assert len(notices) == (engine == "native")


@pytest.mark.parametrize("cap", [0.0, -1.0, float("inf")])
def test_a_cap_is_a_positive_number(cap: float) -> None:
    with pytest.raises(UsageError, match="attention_softcap"):
        ModelConfig(attention_softcap=cap)
