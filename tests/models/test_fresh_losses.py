"""A fresh model gives all tokens nearly the same odds, whatever it is made of: its loss is ln(V) within 2 %."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.models import EncoderDecoder, EncoderLM, build_model


def random_config(architecture: str, seed: int) -> ModelConfig:
    draw = random.Random(f"{architecture} {seed}")
    vocab_size = draw.choice([65, 500, 2000])
    return ModelConfig.read(
        {
            "architecture": architecture,
            "vocab_size": vocab_size,
            "source_vocab_size": draw.choice([None, None, 40, 700]),
            "block_size": 64,
            "n_layers": draw.randint(1, 4),
            "n_encoder_layers": draw.randint(1, 4),
            "n_heads": 4,
            "n_kv_heads": draw.choice([4, 2]),
            "d_model": draw.choice([32, 64, 192]),
            "norm": draw.choice(["layernorm", "rmsnorm"]),
            "norm_position": draw.choice(["pre", "post"]),
            "feedforward": draw.choice(["relu", "gelu", "relu2", "swiglu"]),
            "positions": draw.choice(["learned", "sinusoidal", "rope", "alibi", "none"]),
            "qk_norm": draw.random() < 0.5,
            "bias": draw.random() < 0.5,
            "tie_embeddings": draw.random() < 0.7,
            "scale_embedding": draw.random() < 0.5,
            "init": draw.choice(["normal", "xavier"]),
        }
    )


def random_ids(vocab_size: int, columns: int, seed: int) -> Tensor:
    return torch.randint(vocab_size, (16, columns), generator=torch.Generator().manual_seed(seed))


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(20))
@torch.inference_mode()
def test_of_a_translator(seed: int) -> None:
    config = random_config("encoder_decoder", seed)
    model = build_model(config, seed=seed).eval()
    assert isinstance(model, EncoderDecoder)
    source = random_ids(config.source_vocab_size or config.vocab_size, 40, seed=1)
    target = random_ids(config.vocab_size, 65, seed=2)
    loss = F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten()).item()
    assert loss == pytest.approx(math.log(config.vocab_size), rel=0.02)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(20))
@torch.inference_mode()
def test_of_a_translator_that_copies(seed: int) -> None:
    """Where source and target are one text, cross-attention must not give the targets away."""
    config = random_config("encoder_decoder", seed).model_copy(update={"source_vocab_size": None})
    ids = random_ids(config.vocab_size, 64, seed=2)
    loss = F.cross_entropy(build_model(config, seed=seed).eval()(ids, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(config.vocab_size), rel=0.02)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(20))
@torch.inference_mode()
def test_of_an_encoder(seed: int) -> None:
    """As Devlin et al. 2019 ask: of the chosen tokens four fifths are hidden and a tenth exchanged; a tenth stay."""
    config = random_config("encoder", seed)
    model = build_model(config, seed=seed).eval()
    assert isinstance(model, EncoderLM)
    mask = config.vocab_size - 1
    ids, others = random_ids(mask, 64, seed=2), random_ids(mask, 64, seed=3)
    fate = torch.rand(ids.shape, generator=torch.Generator().manual_seed(4))
    read = ids.masked_fill(fate < 0.24, mask).where((fate < 0.24) | (fate > 0.27), others)
    chosen = fate < 0.3
    loss = F.cross_entropy(model(read)[chosen], ids[chosen]).item()
    assert loss == pytest.approx(math.log(config.vocab_size), rel=0.02)
