"""What every model has in common, and how a fresh one's numbers are drawn."""

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.models import MODELS, BigramLM, CausalLM, DecoderLM, EncoderDecoder, LanguageModel, build_model
from clearhead.parts import DecoderCache, LayerNorm, RMSNorm

SHAPE = {"vocab_size": 300, "block_size": 20, "n_layers": 3, "n_heads": 4, "d_model": 64}


def make(**options: Any) -> LanguageModel:
    return build_model(ModelConfig.read(SHAPE, options))


def test_the_words_of_the_config_are_the_keys() -> None:
    assert set(get_args(ModelConfig.model_fields["architecture"].annotation)) == set(MODELS)


def inputs(model: LanguageModel, ids: Tensor) -> tuple[Tensor, ...]:
    """The ids as a text; or as a target, with a source of another length."""
    return (ids[:, 1:], ids) if isinstance(model, EncoderDecoder) else (ids,)


@pytest.mark.parametrize("architecture", MODELS)
def test_forward_is_head_of_hidden(architecture: str) -> None:
    model = make(architecture=architecture)
    arguments = inputs(model, torch.arange(10).view(2, 5))
    logits = model(*arguments)
    assert logits.shape == (2, 5, 300)
    assert torch.equal(model.head(model.body(*arguments)), logits)
    torch.testing.assert_close(model.head(model.body(*arguments)[:, -1]), logits[:, -1])
    assert type(model) is MODELS[architecture]


@pytest.mark.parametrize("architecture", ["decoder", "bigram", "encoder_decoder"])
def test_a_cache_takes_up_what_was_read(architecture: str) -> None:
    model = make(architecture=architecture)
    arguments = inputs(model, torch.arange(10).view(2, 5))
    assert isinstance(model, CausalLM | EncoderDecoder)
    cache = model.new_cache(2, 5)
    assert isinstance(cache, DecoderCache)
    if isinstance(model, EncoderDecoder):
        logits = model.head(model.decode(arguments[1], model.encode(arguments[0]), cache=cache))
    else:
        logits = model(*arguments, cache=cache)
    torch.testing.assert_close(logits, model(*arguments))
    assert cache.length == 5


def test_a_bigram_model_is_its_table() -> None:
    model = BigramLM(ModelConfig(architecture="bigram", vocab_size=7))
    ids = torch.tensor([[3, 6, 3]])
    (table,) = model.parameters()
    assert table.shape == (7, 7)
    assert torch.equal(model(ids)[0], table[ids[0]])


SUBLAYERS = {"stack": 6, "encoder": 4, "decoder": 9}  # with 3 blocks, or 2 in the encoder of a translator


def drawn_like(name: str, tied: bool, architecture: str) -> float:
    """The standard deviation that the table promises, with V = 300 and D = 64."""
    if name.endswith(("output.weight", "down.weight")):
        return float(0.02 / SUBLAYERS[name.partition(".")[0]] ** 0.5)
    if name in ("embedding.weight", "positions.weight") and tied and architecture == "encoder":
        return 0.15 * math.log(300) / 64
    return 0.02


@pytest.mark.sampled
@pytest.mark.parametrize("architecture", ["decoder", "encoder", "encoder_decoder"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("feedforward", ["relu", "swiglu"])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_every_number_is_drawn_as_the_table_says(tied: bool, feedforward: str, norm: str, architecture: str) -> None:
    model = make(
        tie_embeddings=tied, feedforward=feedforward, norm=norm, bias=True, qk_norm=True, architecture=architecture,
        n_encoder_layers=2, source_vocab_size=400,
    )  # fmt: skip
    matrices = 0
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif isinstance(owner, LayerNorm | RMSNorm):
            assert (parameter == 1).all(), name
        else:
            matrices += 1
            assert parameter.std().item() == pytest.approx(drawn_like(name, tied, architecture), rel=0.06), name
            assert abs(parameter.mean().item()) < 0.002, name
    in_block = 4 + (3 if feedforward == "swiglu" else 2)
    tables = 2 if tied else 3  # embedding, positions, head
    if architecture == "encoder_decoder":
        assert matrices == 5 * in_block + 3 * 4 + tables + 2  # and cross-attention, and the source's tables
    else:
        assert matrices == 3 * in_block + tables


def test_xavier_keeps_to_its_bounds() -> None:
    """U(-a, a) with a^2 = 6 / (in + out); tables as otherwise."""
    model = make(init="xavier", architecture="encoder_decoder", d_ff=200, n_kv_heads=2, tie_embeddings=False)
    for name, parameter in model.named_parameters():
        if "blocks" in name and parameter.dim() == 2:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert bound * 0.97 < parameter.abs().max() <= bound, name
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.06), name
        elif parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.06), name


def test_scaled_embeddings_meet_positions_of_their_own_size() -> None:
    model = make(architecture="encoder_decoder", scale_embedding=True, d_model=256, source_vocab_size=350)
    embedded = [model.get_submodule(name)(torch.arange(300)[None]).std() for name in ("embedding", "source_embedding")]
    positions = [model.get_parameter(f"{name}.weight").std() for name in ("positions", "source_positions")]
    for embedding_std, position_std in zip(embedded, positions, strict=True):
        assert embedding_std.item() == pytest.approx(position_std.item(), rel=0.1)


def test_a_wide_tied_embedding_starts_smaller_and_its_positions_with_it() -> None:
    wide = make(tie_embeddings=True, vocab_size=65, d_model=768)
    scales = [wide.get_parameter(f"{name}.weight").std().item() for name in ("embedding", "positions")]
    assert scales[0] < 0.015
    assert scales[1] == pytest.approx(scales[0], rel=0.06)


@pytest.mark.parametrize("tables", [{"embedding_ngrams": 3}, {"logit_ngrams": 2}])
def test_a_fresh_model_with_ngram_tables_is_the_one_without(tables: dict[str, Any]) -> None:
    ids = torch.arange(10).view(2, 5)
    assert torch.equal(make(**tables)(ids), make()(ids))


def test_no_two_tensors_start_alike() -> None:
    weights = [weight for weight in make().state_dict().values() if weight.dim() > 1]
    assert not any(
        torch.equal(weight, earlier)
        for i, weight in enumerate(weights)
        for earlier in weights[:i]
        if weight.shape == earlier.shape
    )


def test_a_stack_ends_in_a_norm_if_and_only_if_it_is_pre_norm() -> None:
    pre, post = make(norm_position="pre"), make(norm_position="post")
    assert isinstance(pre.get_submodule("stack.norm"), LayerNorm)
    assert isinstance(post.get_submodule("stack.norm"), nn.Identity)


def test_a_tied_head_is_the_embedding() -> None:
    tied, untied = make(tie_embeddings=True), make(tie_embeddings=False)
    assert isinstance(tied, DecoderLM)
    assert tied.lm_head.weight is None
    hidden = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(tied.head(hidden), hidden @ tied.embedding.weight.T)
    extra = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters())
    assert extra == 300 * 64


@pytest.mark.sampled
@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rope", "alibi", "none"])
def test_only_learned_numbers_are_saved(positions: str, architecture: str) -> None:
    model = make(positions=positions, architecture=architecture)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize(
    ("options", "window"),
    [
        ({"positions": "rope", "sliding_window": 7}, 7),
        ({"positions": "none", "sliding_window": 7}, 7),
        ({"positions": "rope"}, None),
        ({"positions": "learned", "sliding_window": 7}, None),
        ({"positions": "sinusoidal", "sliding_window": 7}, None),
        ({"architecture": "bigram"}, 1),
    ],
)
def test_what_a_model_sees_of_a_text_without_end(options: dict[str, Any], window: int | None) -> None:
    model = make(**options)
    assert isinstance(model, CausalLM)
    assert model.receptive_field == window
