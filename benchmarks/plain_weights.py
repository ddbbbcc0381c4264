"""The same weights on both sides: a Clearhead translator as a `PlainTransformer`."""

import torch
from plain_transformer import PlainTransformer
from torch import Tensor, nn

from clearhead.models import EncoderDecoder
from clearhead.parts import Attention, Block

# What a model must be to have an equal on `nn.Transformer` as the plain program uses it.
FITTING: dict[str, object] = {
    "norm": "layernorm",
    "norm_place": "pre",
    "feedforward": "relu",
    "positions": "sinusoidal",
    "bias": True,
    "scale_embedding": True,
    "qk_norm": False,
    "tied": True,
    "source_vocab_size": None,
}


def obstacle(model: EncoderDecoder) -> str | None:
    """Why the plain program cannot have this model's weights, if so."""
    config = model.config
    for name, value in FITTING.items():
        if getattr(config, name) != value:
            return f"the model has {name} {getattr(config, name)}, the plain program {value}"
    equal = config.n_encoder_layers == config.n_layers and config.n_kv_heads == config.n_heads
    return None if equal else "the plain program has as many encoder as decoder layers, and as many key heads as heads"


def plain_copy(model: EncoderDecoder, *, dropout_everywhere: bool = True) -> PlainTransformer:
    """The plain program's model with our weights.

    Args:
        dropout_everywhere: also on attention weights and inside the feed-forward, as `nn.Transformer` has it by itself.
    """
    assert obstacle(model) is None
    config = model.config
    assert config.pad_id is not None
    plain = PlainTransformer(
        vocab_size=config.vocab_size,
        pad=config.pad_id,
        longest=config.block_size,
        n_layers=config.n_layers,
        d_model=config.d_model,
        n_heads=config.n_heads,
        d_ff=config.d_ff,
        dropout=config.dropout,
    )
    plain.embedding.load_state_dict(model.embedding.state_dict())
    weights: dict[str, Tensor] = {}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        weights |= {f"{side}.norm.{name}": value for name, value in stack.norm.state_dict().items()}
        for layer, block in enumerate(stack.blocks):
            assert isinstance(block, Block)
            weights |= {f"{side}.layers.{layer}.{name}": value for name, value in _layer(block).items()}
    plain.transformer.load_state_dict(weights)
    if not dropout_everywhere:
        for module in plain.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Dropout(0.0)
    return plain


def _layer(block: Block) -> dict[str, Tensor]:
    """A block's weights under the names of torch's layers."""
    sublayers = [block.self_attention, block.cross_attention, block.feedforward]
    named: dict[str, Tensor] = {}
    for place, sublayer in enumerate((sub for sub in sublayers if sub is not None), start=1):
        named |= {f"norm{place}.{name}": value for name, value in sublayer.norm.state_dict().items()}
        part = sublayer.part
        if isinstance(part, Attention):
            name = "self_attn" if place == 1 else "multihead_attn"
            maps = (part.query, part.key, part.value)
            named[f"{name}.in_proj_weight"] = torch.cat([m.weight for m in maps])
            named[f"{name}.in_proj_bias"] = torch.cat([m.bias for m in maps])
            named |= {f"{name}.out_proj.{key}": value for key, value in part.output.state_dict().items()}
        else:
            for theirs, ours in (("linear1", part.up), ("linear2", part.down)):
                assert isinstance(ours, nn.Linear)
                named |= {f"{theirs}.{key}": value for key, value in ours.state_dict().items()}
    return named
