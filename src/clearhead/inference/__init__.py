"""Sampling, generation and evaluation. Knows no training."""

from clearhead.inference.context import Context
from clearhead.inference.evaluation import Evaluation, evaluate, token_losses
from clearhead.inference.generation import Piece, Tokenizer, encode_prompt, generate, generate_ids, stream
from clearhead.inference.mode import evaluating
from clearhead.inference.sampling import Sampler, sample

__all__ = [
    "Context",
    "Evaluation",
    "Piece",
    "Sampler",
    "Tokenizer",
    "encode_prompt",
    "evaluate",
    "evaluating",
    "generate",
    "generate_ids",
    "sample",
    "stream",
    "token_losses",
]
