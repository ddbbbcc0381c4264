"""This library's own decoder: rotary positions, grouped keys and values, a sliding window, RMSNorm, SwiGLU."""

import own_parts

from clearhead.config import ModelConfig

CHANGES = {}


def build():
    config = ModelConfig(
        vocab_size=37,
        block_size=64,
        n_layers=3,
        n_heads=4,
        n_kv_heads=2,
        d_model=32,
        norm="rmsnorm",
        feedforward="swiglu",
        positions="rope",
        sliding_window=6,
        dropout=0.1,
    )
    return own_parts.models(CHANGES).DecoderLM(config)
