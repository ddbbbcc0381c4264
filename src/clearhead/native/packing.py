"""Convert a model's parts into the structures of native code."""

from torch import nn

from clearhead.models import DecoderLM, EncoderDecoder
from clearhead.native.structures import Decoder, Layer, Matrix, Norm, Packer, StackWeights, UnknownPartError
from clearhead.parts import (
    ACTIVATIONS,
    Attention,
    Block,
    FeedForward,
    GatedFeedForward,
    ParallelBlock,
    Stack,
    Sublayer,
    Transform,
)
from clearhead.parts.feedforward import Activation
from clearhead.wording import with_article

ACTIVATION_NUMBERS = [ACTIVATIONS[name] for name in ("relu", "relu2", "silu", "gelu_tanh", "gelu")]  # as in numbers.h


def pack_decoder(model: DecoderLM | EncoderDecoder, packer: Packer) -> Decoder:
    """The structure of a decoder.

    Raises:
        UnknownPartError: native code does not implement a part of the model.
    """
    head, embedding = model.lm_head, model.embedding
    decoder = Decoder(
        embedding=packer.pointer(embedding.weight.detach()),
        embedding_scale=embedding.scale,
        embedding_norm=packer.norm(model.embedding_norm),
        stack=_stack(_stack_of(model), packer),
        head_scale=head.scale,
        head=packer.matrix(embedding.weight if head.weight is None else head.weight, head.bias),
    )
    if isinstance(model, DecoderLM):
        decoder.embedding_ngrams = packer.tables(model.embedding_ngrams)
        decoder.logit_ngrams = packer.tables(model.logit_ngrams)
    if isinstance(head.transform, Transform):
        decoder.dense = packer.linear(head.transform.dense)
        decoder.dense_activation = _number(head.transform.activation)
        decoder.dense_norm = packer.norm(head.transform.norm)
    return decoder


def pack_encoder(model: EncoderDecoder, packer: Packer) -> Decoder:
    """The structure of an encoder: that of a decoder without a head, whose matrix has outputs and no weights.

    Raises:
        UnknownPartError: native code does not implement a part of the model.
    """
    embedding = model.source_embedding or model.embedding
    return Decoder(
        embedding=packer.pointer(embedding.weight.detach()),
        embedding_scale=embedding.scale,
        embedding_norm=packer.norm(model.source_embedding_norm),
        stack=_stack(model.encoder, packer),
        head=Matrix(outputs=embedding.num_embeddings),
    )


def _stack_of(model: DecoderLM | EncoderDecoder) -> Stack:
    """The stack with the causal mask."""
    return model.stack if isinstance(model, DecoderLM) else model.decoder


def macs_per_token(model: DecoderLM | EncoderDecoder) -> int:
    """Multiplications per token, in the blocks and the head."""
    return sum(p.numel() for p in _stack_of(model).parameters()) + model.config.vocab_size * model.config.d_model


def _stack(stack: Stack, packer: Packer) -> StackWeights:
    """The structure of a stack, whose layers differ in their weights alone."""
    layers = [_layer(block, packer) for block in stack.blocks]
    block = stack.blocks[0]
    attention, feedforward = _parts(block)
    assert isinstance(block, Block)
    return StackWeights(
        layers=packer.array(layers),
        n_layers=len(layers),
        d_model=attention.query.in_features,
        n_heads=attention.n_heads,
        n_kv_heads=attention.n_kv_heads,
        head_dim=attention.head_dim,
        d_ff=feedforward.down.in_features,
        scale=attention.scoring.factor(attention.head_dim),
        activation=_number(feedforward.activation),
        post=block.self_attention.norm_position == "post",
        parallel=isinstance(block, ParallelBlock),
        norm=packer.norm(stack.norm),
    )


def _layer(block: nn.Module, packer: Packer) -> Layer:
    attention, feedforward = _parts(block)
    assert isinstance(block, Block)
    return Layer(
        heads=packer.linear(attention.query, attention.key, attention.value),
        output=packer.linear(attention.output),
        up=packer.linear(feedforward.up),
        gate=packer.linear(feedforward.gate) if isinstance(feedforward, GatedFeedForward) else Matrix(),
        down=packer.linear(feedforward.down),
        attention_norm=packer.norm(block.self_attention.norm),
        query_norm=packer.norm(attention.query_norm),
        key_norm=packer.norm(attention.key_norm),
        feedforward_norm=packer.norm(block.feedforward.norm),
        **_cross_attention(block.cross_attention, attention, packer),
    )


def _cross_attention(sublayer: Sublayer | None, own: Attention, packer: Packer) -> dict[str, Matrix | Norm]:
    """The cross-attention fields of a layer, if it has any; its heads must be shaped like self-attention's."""
    if sublayer is None:
        return {}
    part = sublayer.part
    if not isinstance(part, Attention) or _heads(part) != _heads(own):
        raise UnknownPartError("cross-attention of another kind than self-attention is not known to native code")
    return {
        "cross_query": packer.linear(part.query),
        "cross_output": packer.linear(part.output),
        "cross_memory": packer.linear(part.key, part.value),
        "cross_norm": packer.norm(sublayer.norm),
        "cross_query_norm": packer.norm(part.query_norm),
        "cross_key_norm": packer.norm(part.key_norm),
    }


def _heads(attention: Attention) -> tuple[object, ...]:
    return attention.n_heads, attention.n_kv_heads, attention.head_dim, attention.scoring


def _parts(block: nn.Module) -> tuple[Attention, FeedForward]:
    if isinstance(block, Block):
        attention, feedforward = block.self_attention.part, block.feedforward.part
        if isinstance(attention, Attention) and isinstance(feedforward, FeedForward):
            return attention, feedforward
    raise UnknownPartError(f"{with_article(type(block).__name__)} of other parts is not known to native code")


def _number(activation: Activation) -> int:
    if activation not in ACTIVATION_NUMBERS:
        raise UnknownPartError(f"the activation {activation} is not known to native code")
    return ACTIVATION_NUMBERS.index(activation)
