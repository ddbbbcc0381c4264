"""`train.recompute = blocks`: the same gradient, bit for bit, from less memory."""

from typing import Any

import pytest
import torch
from torch import Tensor
from training_helpers import tiny_batch, tiny_config, tiny_model

from clearhead.config import ModelConfig
from clearhead.inspection import estimate_cost
from clearhead.models import build_model
from clearhead.training.loss import counted_tokens
from clearhead.training.train_step import TrainStep


def gradient_and_kept_bytes(recompute: str, **options: Any) -> tuple[dict[str, Tensor], int]:
    """The gradient of a step, and the bytes of the different tensors that were kept for its backward pass."""
    config, kept = tiny_config(recompute=recompute, micro_batches=2), dict[int, int]()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    model = tiny_model(n_layers=6, **options)
    batch = tiny_batch(3)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        TrainStep(model, config).gradient(batch, tokens=counted_tokens(batch[-1]), seed=1, step=0)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, sum(kept.values())


@pytest.mark.parametrize("options", [{}, {"norm_position": "post"}, {"parallel_residual": True}, {"dropout": 0.0}])
def test_what_is_computed_again_has_the_same_gradient(options: dict[str, Any]) -> None:
    (plain, much), (again, little) = (gradient_and_kept_bytes(how, **options) for how in ("none", "blocks"))
    assert plain.keys() == again.keys()
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    assert little < much


def test_translators_recompute_both_stacks() -> None:
    shape = {"vocab_size": 11, "block_size": 8, "n_layers": 3, "n_heads": 2, "d_model": 8, "d_ff": 16}
    model = build_model(
        ModelConfig.read(shape, {"architecture": "encoder_decoder", "n_encoder_layers": 3, "pad_id": 0})
    )
    ids, targets = tiny_batch(0)
    gradients = []
    for recompute in ("none", "blocks"):
        model.zero_grad(set_to_none=True)
        step = TrainStep(model, tiny_config(recompute=recompute))
        step.gradient((ids, ids, targets), tokens=counted_tokens(targets), seed=1, step=0)
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(map(torch.equal, *gradients))


def test_the_estimate_knows_that_blocks_keep_their_inputs_alone() -> None:
    model = ModelConfig(vocab_size=64, block_size=128, n_layers=12, n_heads=4, d_model=64, d_ff=256)
    much, little = (estimate_cost(model, tiny_config(recompute=how)).bytes["activations"] for how in ("none", "blocks"))
    assert little < much / 3
