"""This library's own encoder-decoder: learned positions, post-norm, a source vocabulary of its own, padding by id."""

import own_parts

from clearhead.config import ModelConfig

CHANGES = {}


def build():
    config = ModelConfig(
        architecture="encoder_decoder",
        vocab_size=37,
        source_vocab_size=33,
        pad_id=0,
        decoder_start_id=1,
        block_size=48,
        n_layers=2,
        n_heads=4,
        d_model=32,
        norm_position="post",
        qk_norm=True,
        bias=True,
        dropout=0.1,
    )
    return own_parts.models(CHANGES).EncoderDecoder(config)
