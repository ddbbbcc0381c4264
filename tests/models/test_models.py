"""What every model has in common, and how a fresh one's numbers are drawn."""

from typing import Any, get_args

import pytest
import torch
from torch import nn

from clearhead.config import ModelConfig
from clearhead.models import MODELS, BigramLM, DecoderLM, LanguageModel, build
from clearhead.parts import DecoderCache, LayerNorm, RMSNorm

SHAPE = {"vocab_size": 300, "block_size": 20, "n_layers": 3, "n_heads": 4, "d_model": 64}


def make(**options: Any) -> LanguageModel:
    return build(ModelConfig.read(SHAPE, options))


def test_the_words_of_the_config_are_the_keys() -> None:
    assert set(get_args(ModelConfig.model_fields["architecture"].annotation)) == set(MODELS)


@pytest.mark.parametrize("architecture", MODELS)
def test_forward_is_head_of_hidden(architecture: str) -> None:
    model, ids = make(architecture=architecture), torch.arange(10).view(2, 5)
    logits = model(ids)
    assert logits.shape == (2, 5, 300)
    assert torch.equal(model.head(model.hidden(ids)), logits)
    torch.testing.assert_close(model.head(model.hidden(ids)[:, -1]), logits[:, -1])
    cache = model.new_cache(2, 5)
    assert isinstance(cache, DecoderCache)
    torch.testing.assert_close(model(ids, cache=cache), logits)
    assert cache.length == 5
    assert type(model) is MODELS[architecture]


def test_a_bigram_model_is_its_table() -> None:
    model = BigramLM(ModelConfig(architecture="bigram", vocab_size=7))
    ids = torch.tensor([[3, 6, 3]])
    (table,) = model.parameters()
    assert table.shape == (7, 7)
    assert torch.equal(model(ids)[0], table[ids[0]])


def drawn_like(name: str) -> float:
    """The standard deviation that the table promises, D = 64 and n_layers = 3."""
    return 0.02 / 6**0.5 if name.endswith(("output.weight", "down.weight")) else 0.02


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("feedforward", ["relu", "swiglu"])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_every_number_is_drawn_as_the_table_says(tied: bool, feedforward: str, norm: str) -> None:
    model = make(tied=tied, feedforward=feedforward, norm=norm, bias=True, qk_norm=True)
    matrices = 0
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif isinstance(owner, LayerNorm | RMSNorm):
            assert (parameter == 1).all(), name
        else:
            matrices += 1
            assert parameter.std().item() == pytest.approx(drawn_like(name), rel=0.06), name
            assert abs(parameter.mean().item()) < 0.002, name
    in_block = 4 + (3 if feedforward == "swiglu" else 2)
    assert matrices == 3 * in_block + (2 if tied else 3)  # embedding, positions, head


def test_a_wide_tied_embedding_starts_smaller_and_its_positions_with_it() -> None:
    wide = make(tied=True, vocab_size=65, d_model=768)
    scales = [wide.get_parameter(f"{name}.weight").std().item() for name in ("embedding", "positions")]
    assert scales[0] < 0.015
    assert scales[1] == pytest.approx(scales[0], rel=0.06)


def test_no_two_tensors_start_alike() -> None:
    weights = [weight for weight in make().state_dict().values() if weight.dim() > 1]
    assert not any(
        torch.equal(one, other) for i, one in enumerate(weights) for other in weights[:i] if one.shape == other.shape
    )


def test_a_stack_ends_in_a_norm_if_and_only_if_it_is_pre_norm() -> None:
    pre, post = make(norm_place="pre"), make(norm_place="post")
    assert isinstance(pre.get_submodule("stack.norm"), LayerNorm)
    assert isinstance(post.get_submodule("stack.norm"), nn.Identity)


def test_a_tied_head_is_the_embedding() -> None:
    tied, untied = make(tied=True), make(tied=False)
    assert isinstance(tied, DecoderLM)
    assert tied.unembedding is None
    hidden = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(tied.head(hidden), hidden @ tied.embedding.weight.T)
    extra = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters())
    assert extra == 300 * 64


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rope", "alibi", "none"])
def test_only_learned_numbers_are_saved(positions: str) -> None:
    model = make(positions=positions)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize(
    ("options", "window"),
    [
        ({"positions": "rope", "window": 7}, 7),
        ({"positions": "none", "window": 7}, 7),
        ({"positions": "rope"}, None),
        ({"positions": "learned", "window": 7}, None),
        ({"positions": "sinusoidal", "window": 7}, None),
        ({"architecture": "bigram"}, 1),
    ],
)
def test_what_a_model_sees_of_a_text_without_end(options: dict[str, Any], window: int | None) -> None:
    assert make(**options).endless_window == window
