"""Text as tokens: corpora, tokenizers, windows, sentence pairs. Knows no model."""

from clearhead.data import stories
from clearhead.data.corpora import CORPORA, Corpus
from clearhead.data.documents import read_lines
from clearhead.data.masking import Masking, masked_evaluation_batches, masked_training_batch
from clearhead.data.parallel.batches import PairBatch, PairBatches
from clearhead.data.parallel.batches import evaluation_batches as evaluation_pair_batches
from clearhead.data.parallel.corpora import PAIR_CORPORA, PairCorpus
from clearhead.data.parallel.encoded import EncodedPairs, encode_pairs
from clearhead.data.parallel.preparation import PairData, prepare_pairs
from clearhead.data.parallel.sources import is_pairs, read_pairs
from clearhead.data.parallel.vocabularies import special_tokens
from clearhead.data.preparation import MIN_CHARACTERS, TextData, encode_for_evaluation, prepare
from clearhead.data.tokenizers import Tokenizer, UnseenCharacterError
from clearhead.data.windows import IGNORED, Batch, document_numbers, evaluation_batches, training_batch

__all__ = [
    "CORPORA",
    "IGNORED",
    "MIN_CHARACTERS",
    "PAIR_CORPORA",
    "Batch",
    "Corpus",
    "EncodedPairs",
    "Masking",
    "PairBatch",
    "PairBatches",
    "PairCorpus",
    "PairData",
    "TextData",
    "Tokenizer",
    "UnseenCharacterError",
    "document_numbers",
    "encode_for_evaluation",
    "encode_pairs",
    "evaluation_batches",
    "evaluation_pair_batches",
    "is_pairs",
    "masked_evaluation_batches",
    "masked_training_batch",
    "prepare",
    "prepare_pairs",
    "read_lines",
    "read_pairs",
    "special_tokens",
    "stories",
    "training_batch",
]
