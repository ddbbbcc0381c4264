"""Matrices in fewer bits: how far they are from the full ones, and that packing them loses nothing more."""

import pytest
import torch

from clearhead.config import Dtype, ModelConfig
from clearhead.models import DecoderLM
from clearhead.models.quantization import linear_weights, quantize, quantize_model

NARROW: list[Dtype] = ["bfloat16", "int8"]


def random_matrix() -> torch.Tensor:
    return torch.randn(21, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def make_model(**options: object) -> DecoderLM:
    shape = {"vocab_size": 50, "block_size": 32, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "d_model": 64}
    return DecoderLM(ModelConfig.read(shape, options), seed=1).eval()


def test_an_int8_weight_is_within_half_a_step_of_the_full_one() -> None:
    matrix = random_matrix()
    numbers, scales = quantize(matrix, "int8")
    assert scales is not None
    assert numbers.dtype == torch.int8
    assert (numbers.abs().amax(1) == 127).all(), "each output uses the whole range"
    assert ((numbers * scales - matrix).abs() <= scales / 2 + 1e-12).all()


def test_a_matrix_of_zeros_stays_one() -> None:
    for weights in NARROW:
        assert not quantize(torch.zeros(3, 4), weights).dequantize(torch.float32).any()


@pytest.mark.parametrize("weights", NARROW)
def test_rounding_twice_changes_nothing_more(weights: Dtype) -> None:
    once = quantize(random_matrix(), weights).dequantize(torch.float64)
    torch.testing.assert_close(quantize(once, weights).dequantize(torch.float64), once, rtol=1e-14, atol=0)
    assert not torch.equal(once, random_matrix())


@pytest.mark.parametrize("tied", [True, False])
def test_what_linear_maps_multiply_with_is_found(tied: bool) -> None:
    model = make_model(tie_embeddings=tied, feedforward="swiglu", head_transform=True)
    names = linear_weights(model)
    maps = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    assert set(names) == maps | {"embedding.weight" if tied else "lm_head.weight"}
    assert len(names) == len(set(names)) == 3 * 7 + 2


@pytest.mark.parametrize("positions", ["learned", "rope"])
@pytest.mark.parametrize(("weights", "bound"), [("bfloat16", 0.01), ("int8", 0.02)])
@torch.inference_mode()
def test_logits_stay_near_the_full_ones(positions: str, weights: Dtype, bound: float) -> None:
    model = make_model(positions=positions, tie_embeddings=False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(3)  # as far from each other as a trained model's
    ids = torch.randint(50, (4, 32), generator=torch.Generator().manual_seed(0))
    full, narrow = model(ids), quantize_model(model, weights)(ids)
    error = ((narrow - full).square().mean() / full.var()).sqrt()
    assert 0 < error < bound, f"the root of the mean squared error is {error:.4f} of the logits' spread"


def test_rounding_leaves_the_model_as_it_was() -> None:
    model = make_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert quantize_model(model, "float32") is model
    changed = quantize_model(model, "int8")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(changed.get_parameter("positions.weight"), before["positions.weight"])
    assert not torch.equal(changed.get_parameter("embedding.weight"), before["embedding.weight"])


def test_quantizing_leaves_the_mode_and_the_global_randomness_alone() -> None:
    model = make_model(dropout=0.5).train()
    before = torch.get_rng_state()
    quantize_model(model, "int8")
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in model.modules())
