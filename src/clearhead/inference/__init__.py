"""Sampling, generation, translation and evaluation. Knows no training."""

from clearhead.inference.batching import GenerationBatch
from clearhead.inference.beam import Hypothesis, beam_search
from clearhead.inference.continuation import generate_ids
from clearhead.inference.engine import Engine
from clearhead.inference.evaluation import NothingToEvaluateError, evaluate, token_losses
from clearhead.inference.filling import Candidate, Filled, fill
from clearhead.inference.generation import Piece, TextCodec, encode_prompt, generate, stream, stream_ids
from clearhead.inference.sampling import sample
from clearhead.inference.scoring import CorpusScores, can_score, corpus_scores, require_sacrebleu
from clearhead.inference.text_options import TextOptions, TokenLogprobs
from clearhead.inference.translation import Translation, translate
from clearhead.models import Evaluation
from clearhead.models.eval_mode import evaluating

__all__ = [
    "Candidate",
    "CorpusScores",
    "Engine",
    "Evaluation",
    "Filled",
    "GenerationBatch",
    "Hypothesis",
    "NothingToEvaluateError",
    "Piece",
    "TextCodec",
    "TextOptions",
    "TokenLogprobs",
    "Translation",
    "beam_search",
    "can_score",
    "corpus_scores",
    "encode_prompt",
    "evaluate",
    "evaluating",
    "fill",
    "generate",
    "generate_ids",
    "require_sacrebleu",
    "sample",
    "stream",
    "stream_ids",
    "token_losses",
    "translate",
]
