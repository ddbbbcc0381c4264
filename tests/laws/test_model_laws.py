"""Shared heads, fresh losses, dropout that is zero."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from law_models import CHOICES, Choice, make_model, name, random_ids
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.models import BigramLM, build_model

every_choice = pytest.mark.parametrize("choice", CHOICES, ids=name)


@pytest.mark.parametrize("n_kv_heads", [1, 2])
@pytest.mark.parametrize("positions", ["learned", "rope", "alibi"])
@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_grouped_queries_equal_repeated_heads(n_kv_heads: int, positions: str, bias: bool) -> None:
    choice: dict[str, Any] = {"positions": positions, "bias": bias}
    grouped, full = make_model(**choice, n_kv_heads=n_kv_heads), make_model(**choice, n_kv_heads=4)

    def repeat(weight: Tensor) -> Tensor:
        heads = weight.view(n_kv_heads, -1, *weight.shape[1:])  # (H_kv, K, ...)
        return heads.repeat_interleave(4 // n_kv_heads, 0).flatten(0, 1)  # (H * K, ...)

    weights = {
        label: repeat(weight) if ".key." in label or ".value." in label else weight
        for label, weight in grouped.state_dict().items()
    }
    full.load_state_dict(weights)
    ids = random_ids(2, 15)
    torch.testing.assert_close(grouped(ids), full(ids), rtol=0, atol=1e-12)


@every_choice
@pytest.mark.parametrize("vocab_size", [65, 512, 4096])
@torch.inference_mode()
def test_a_fresh_model_gives_all_tokens_nearly_the_same_odds(choice: Choice, vocab_size: int) -> None:
    shape = {"vocab_size": vocab_size, "block_size": 64, "n_layers": 4, "n_heads": 4, "d_model": 64}
    model = build_model(ModelConfig.read(shape, choice), seed=3).eval()
    ids = torch.randint(vocab_size, (8, 65), generator=torch.Generator().manual_seed(0))
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).item()
    assert loss == pytest.approx(math.log(vocab_size), rel=0.02)


@pytest.mark.parametrize("d_model", [32, 512])
@pytest.mark.parametrize("tied", [True, False])
@torch.inference_mode()
def test_the_fresh_loss_does_not_depend_on_the_width(d_model: int, tied: bool) -> None:
    config = ModelConfig(vocab_size=65, block_size=64, n_layers=2, n_heads=4, d_model=d_model, tie_embeddings=tied)
    ids = torch.randint(65, (8, 64), generator=torch.Generator().manual_seed(0))
    loss = F.cross_entropy(build_model(config, seed=3).eval()(ids).flatten(0, 1), (ids.flatten() + 1) % 65).item()
    assert loss == pytest.approx(math.log(65), rel=0.02)


@torch.inference_mode()
def test_a_fresh_bigram_table_is_nearly_even() -> None:
    model = BigramLM(ModelConfig(architecture="bigram", vocab_size=65))
    ids = torch.arange(65)[None]
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flip(1).flatten()).item()
    assert loss == pytest.approx(math.log(65), rel=0.02)


@every_choice
def test_without_dropout_training_and_evaluation_are_one(choice: Choice) -> None:
    model, ids = make_model(**choice), random_ids(2, 10)
    evaluated = model(ids)
    assert torch.equal(model.train()(ids), evaluated)


@pytest.mark.parametrize("option", ["dropout", "attention_dropout", "feedforward_dropout"])
def test_each_dropout_acts_in_training_only(option: str) -> None:
    model, ids = make_model(**{option: 0.5}), random_ids(2, 10)
    plain = make_model()(ids)
    assert torch.equal(model(ids), plain)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert not torch.equal(model.train()(ids), plain)


@every_choice
def test_a_seed_decides_the_weights(choice: Choice) -> None:
    config = ModelConfig.read({"n_heads": 4, "d_model": 16, "n_layers": 2, "vocab_size": 11}, choice)
    weights, same, other = (build_model(config, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(weights[label], same[label]) for label in weights)
    assert not torch.equal(weights["embedding.weight"], other["embedding.weight"])


def test_building_a_model_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    build_model(ModelConfig())
    build_model(ModelConfig(architecture="bigram"))
    assert torch.equal(torch.get_rng_state(), before)
