"""Write a translator as a CTranslate2 folder; token ids are stored as strings.

So no tokenizer is written, and no other package is needed.
"""

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.errors import UsageError
from clearhead.interop.extras import require
from clearhead.models import EncoderDecoder
from clearhead.parts import Block, Embedding, LayerNorm, Stack, Sublayer

if TYPE_CHECKING:
    from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec
    from ctranslate2.specs.common_spec import EmbeddingsSpec, LayerNormSpec, LinearSpec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

NEEDS: dict[str, object] = {"architecture": "encoder_decoder", "norm": "layernorm"}
SUPPORTED_OPTIONS = {
    *("vocab_size", "source_vocab_size", "pad_id", "block_size", "n_layers", "n_encoder_layers", "d_model", "d_ff"),
    *("n_heads", "n_kv_heads", "head_dim", "feedforward", "positions", "rope_theta", "norm_position", "norm_eps"),
    *("embedding_norm", "scale_embedding", "bias", "qkv_bias", "tie_embeddings", "head_bias", "decoder_start_id"),
}
POSITIONS = ("learned", "sinusoidal")
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}  # and what it calls them


def ctranslate2_obstacle(config: ModelConfig) -> str | None:
    """Which options CTranslate2 does not know, in words; None if it can compute the model."""
    needs = NEEDS | config.unusual_options({*NEEDS, *SUPPORTED_OPTIONS})
    reasons = [f"{option} {getattr(config, option)}" for option in needs if getattr(config, option) != needs[option]]
    if config.positions not in POSITIONS:
        reasons.append(f"positions {config.positions}")
    if config.feedforward not in ACTIVATIONS:
        reasons.append(f"feedforward {config.feedforward}")
    if config.n_kv_heads != config.n_heads or config.n_heads * config.head_dim != config.d_model:
        reasons.append("heads that do not share d_model among them")
    return " and ".join(reasons) or None


def save_ctranslate2(folder: Path, model: EncoderDecoder, *, end: int) -> None:
    """Write the model, in float32.

    Args:
        folder: where to.
        model: which.
        end: the token that ends a translation.

    Raises:
        UsageError: CTranslate2 is not installed, or does not know such a model.
    """
    require("ctranslate2", "ctranslate2")
    config = model.config
    if reason := ctranslate2_obstacle(config):
        raise UsageError(f"CTranslate2 has no equivalent of this model, because of {reason}")
    specs: Any = import_module("ctranslate2.specs")  # which has no types
    spec = specs.TransformerSpec.from_config(
        (config.n_encoder_layers, config.n_layers),
        config.n_heads,
        pre_norm=config.norm_position == "pre",
        activation=getattr(specs.common_spec.Activation, ACTIVATIONS[config.feedforward]),
        layernorm_embedding=config.embedding_norm,
    )
    _fill_stack(spec.encoder, model.encoder)
    _fill_stack(spec.decoder, model.decoder)
    source, [table] = model.source_embedding or model.embedding, spec.encoder.embeddings
    _fill_reading(spec.encoder, table, source, model.source_embedding_norm)
    _fill_reading(spec.decoder, spec.decoder.embeddings, model.embedding, model.embedding_norm)
    nothing = model.embedding.weight.new_zeros(1, config.block_size, config.d_model)  # to which places are added
    for stack, positions in ((spec.encoder, model.source_positions), (spec.decoder, model.positions)):
        stack.position_encodings.encodings = _numbers(positions.add(nothing, range(config.block_size))[0])
    head = model.lm_head
    spec.decoder.projection.weight = _numbers(model.embedding.weight if head.weight is None else head.weight)
    if head.bias is not None:
        spec.decoder.projection.bias = _numbers(head.bias)
    spec.register_source_vocabulary(to_ctranslate2(range(config.source_vocab_size or config.vocab_size)))
    spec.register_target_vocabulary(to_ctranslate2(range(config.vocab_size)))
    spec.config.layer_norm_epsilon = config.norm_eps
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = str(end)
    spec.config.decoder_start_token = str(config.first_token(end))
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def to_ctranslate2(ids: Iterable[int]) -> list[str]:
    """The strings that CTranslate2 knows these tokens by."""
    return [str(token) for token in ids]


def _fill_stack(spec: "TransformerEncoderSpec | TransformerDecoderSpec", stack: Stack) -> None:
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        assert isinstance(block, Block)
        own, across, forward = block.self_attention, block.cross_attention, block.feedforward
        feedforward: Any = forward.part  # of several classes, with maps of these names
        _fill_attention(layer.self_attention, own, ("query", "key", "value"))
        if across is not None:
            _fill_attention(layer.attention, across, ("query",), ("key", "value"))
        _fill_norm(layer.ffn.layer_norm, forward.norm)
        _fill_linear(layer.ffn.linear_0, feedforward.up)
        _fill_linear(layer.ffn.linear_1, feedforward.down)
    if not isinstance(stack.norm, nn.Identity):
        _fill_norm(spec.layer_norm, stack.norm)


def _fill_attention(spec: "MultiHeadAttentionSpec", sublayer: Sublayer, *groups: Sequence[str]) -> None:
    """The maps of a group lie below each other in one matrix."""
    attention: Any = sublayer.part  # of several classes, with maps of these names
    _fill_norm(spec.layer_norm, sublayer.norm)
    for linear, group in zip(spec.linear, (*groups, ("output",)), strict=True):
        _fill_linear(linear, *(getattr(attention, name) for name in group))


def _fill_linear(spec: "LinearSpec", *maps: nn.Linear) -> None:
    matrices: list[Tensor] = [linear.weight for linear in maps]
    biases: list[Tensor] = [linear.bias for linear in maps if linear.bias is not None]
    spec.weight = _numbers(torch.cat(matrices))
    if biases:
        spec.bias = _numbers(torch.cat(biases))


def _fill_norm(spec: "LayerNormSpec", norm: nn.Module) -> None:
    assert isinstance(norm, LayerNorm)
    spec.gamma, spec.beta = _numbers(norm.weight), _numbers(norm.bias)


def _fill_reading(
    spec: "TransformerEncoderSpec | TransformerDecoderSpec",
    table: "EmbeddingsSpec",
    embedding: Embedding,
    norm: nn.Module,
) -> None:
    """What a stack reads: embeddings and, once they know their places, their norm."""
    spec.scale_embeddings = embedding.scale
    table.weight = _numbers(embedding.weight)
    if not isinstance(norm, nn.Identity):
        _fill_norm(spec.layernorm_embedding, norm)


def _numbers(tensor: Tensor) -> NDArray[np.float32]:
    """As NumPy has them."""
    return tensor.detach().float().cpu().numpy()
