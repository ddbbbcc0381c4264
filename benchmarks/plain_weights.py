"""The same weights on both sides: a Clearhead translator as a `PlainTransformer`."""

from plain_transformer import PlainTransformer
from torch import nn

from clearhead.interop import to_torch
from clearhead.models import EncoderDecoder

# What a model must be to have an equal on `nn.Transformer` as the plain program uses it.
FITTING: dict[str, object] = {
    "norm": "layernorm",
    "norm_position": "pre",
    "feedforward": "relu",
    "positions": "sinusoidal",
    "bias": True,
    "scale_embedding": True,
    "qk_norm": False,
    "tie_embeddings": True,
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
    stacks = nn.ModuleDict({"encoder": model.encoder, "decoder": model.decoder})
    plain.transformer.load_state_dict(to_torch(stacks.state_dict()))
    if not dropout_everywhere:
        for module in plain.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Dropout(0.0)
    return plain
