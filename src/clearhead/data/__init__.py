"""Text as tokens: corpora, tokenizers, windows. Knows no model."""

from clearhead.data.corpora import CORPORA, Corpus
from clearhead.data.preparation import MIN_CHARACTERS, TextData, encode_for_evaluation, prepare
from clearhead.data.tokenizers import Tokenizer, UnseenCharacterError
from clearhead.data.windows import IGNORED, Batch, document_numbers, evaluation_batches, training_batch

__all__ = [
    "CORPORA",
    "IGNORED",
    "MIN_CHARACTERS",
    "Batch",
    "Corpus",
    "TextData",
    "Tokenizer",
    "UnseenCharacterError",
    "document_numbers",
    "encode_for_evaluation",
    "evaluation_batches",
    "prepare",
    "training_batch",
]
