"""The twin: every part and every model once more, in NumPy and float64, to be read beside the equations.

It shares no code with the torch parts and takes the same weights by the same names; tests compare the two. Slow and
plain on purpose.

    weights = reference.as_float64(model.state_dict())
    logits = reference.FORWARDS[config.architecture](weights, config, ids)  # (B, T) -> (B, T, V)
"""

from clearhead.reference.arrays import Allowed, Array, Gradient, Ids, Shape, Weights, as_float64, linear, subtree
from clearhead.reference.attention import AttentionInputs, AttentionSteps, attend
from clearhead.reference.blocks import SourceMemory, block, stack, sublayer
from clearhead.reference.example import SUBLAYERS, ExampleLayer, Intermediate, worked_example
from clearhead.reference.feedforward import FEEDFORWARDS, FeedForwardSteps, feed_forward
from clearhead.reference.gradients import (
    AttentionGradient,
    attention_gradient,
    cross_entropy_gradient,
    feedforward_gradient,
    linear_gradient,
)
from clearhead.reference.loss import IGNORED, cross_entropy
from clearhead.reference.models import FORWARDS, bigram, decoder, encoder, encoder_decoder
from clearhead.reference.ngrams import ngram_row, ngram_vectors
from clearhead.reference.norms import (
    NORMS,
    NormKind,
    layernorm,
    layernorm_gradient,
    normalize,
    rmsnorm,
    rmsnorm_gradient,
)
from clearhead.reference.positions import ADDED, BIASED, ROTATED, apply_rotary, may_attend, positions_of
from clearhead.reference.shapes import SHAPES, weight_shapes

__all__ = [
    "ADDED",
    "BIASED",
    "FEEDFORWARDS",
    "FORWARDS",
    "IGNORED",
    "NORMS",
    "ROTATED",
    "SHAPES",
    "SUBLAYERS",
    "Allowed",
    "Array",
    "AttentionGradient",
    "AttentionInputs",
    "AttentionSteps",
    "ExampleLayer",
    "FeedForwardSteps",
    "Gradient",
    "Ids",
    "Intermediate",
    "NormKind",
    "Shape",
    "SourceMemory",
    "Weights",
    "apply_rotary",
    "as_float64",
    "attend",
    "attention_gradient",
    "bigram",
    "block",
    "cross_entropy",
    "cross_entropy_gradient",
    "decoder",
    "encoder",
    "encoder_decoder",
    "feed_forward",
    "feedforward_gradient",
    "layernorm",
    "layernorm_gradient",
    "linear",
    "linear_gradient",
    "may_attend",
    "ngram_row",
    "ngram_vectors",
    "normalize",
    "positions_of",
    "rmsnorm",
    "rmsnorm_gradient",
    "stack",
    "sublayer",
    "subtree",
    "weight_shapes",
    "worked_example",
]
