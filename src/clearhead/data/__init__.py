"""Text as tokens: corpora, tokenizers, windows, sentence pairs. Knows no model.

What needs torch loads it when it is touched: a stranger's tokenizer is judged before that.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; below is the same
    from clearhead.data import stories as stories
    from clearhead.data.corpora import CORPORA as CORPORA
    from clearhead.data.corpora import Corpus as Corpus
    from clearhead.data.documents import read_lines as read_lines
    from clearhead.data.masking import Masking as Masking
    from clearhead.data.masking import masked_evaluation_batches as masked_evaluation_batches
    from clearhead.data.masking import masked_training_batch as masked_training_batch
    from clearhead.data.parallel import batches
    from clearhead.data.parallel.batches import PairBatch as PairBatch
    from clearhead.data.parallel.batches import PairBatches as PairBatches
    from clearhead.data.parallel.corpora import PAIR_CORPORA as PAIR_CORPORA
    from clearhead.data.parallel.corpora import PairCorpus as PairCorpus
    from clearhead.data.parallel.encoded import EncodedPairs as EncodedPairs
    from clearhead.data.parallel.encoded import encode_pairs as encode_pairs
    from clearhead.data.parallel.preparation import PairData as PairData
    from clearhead.data.parallel.preparation import prepare_pairs as prepare_pairs
    from clearhead.data.parallel.sources import is_pairs as is_pairs
    from clearhead.data.parallel.sources import read_pairs as read_pairs
    from clearhead.data.parallel.vocabularies import special_tokens as special_tokens
    from clearhead.data.preparation import MIN_CHARACTERS as MIN_CHARACTERS
    from clearhead.data.preparation import TextData as TextData
    from clearhead.data.preparation import encode_for_evaluation as encode_for_evaluation
    from clearhead.data.preparation import prepare as prepare
    from clearhead.data.sources import pipe_of as pipe_of
    from clearhead.data.tokenizers import Tokenizer as Tokenizer
    from clearhead.data.tokenizers import UnseenCharacterError as UnseenCharacterError
    from clearhead.data.windows import IGNORED as IGNORED
    from clearhead.data.windows import Batch as Batch
    from clearhead.data.windows import document_numbers as document_numbers
    from clearhead.data.windows import evaluation_batches as evaluation_batches
    from clearhead.data.windows import training_batch as training_batch

    evaluation_pair_batches = batches.evaluation_batches

_FILE_OF = {
    "Batch": "windows",
    "CORPORA": "corpora",
    "Corpus": "corpora",
    "EncodedPairs": "parallel.encoded",
    "IGNORED": "windows",
    "MIN_CHARACTERS": "preparation",
    "Masking": "masking",
    "PAIR_CORPORA": "parallel.corpora",
    "PairBatch": "parallel.batches",
    "PairBatches": "parallel.batches",
    "PairCorpus": "parallel.corpora",
    "PairData": "parallel.preparation",
    "TextData": "preparation",
    "Tokenizer": "tokenizers",
    "UnseenCharacterError": "tokenizers",
    "document_numbers": "windows",
    "encode_for_evaluation": "preparation",
    "encode_pairs": "parallel.encoded",
    "evaluation_batches": "windows",
    "is_pairs": "parallel.sources",
    "masked_evaluation_batches": "masking",
    "masked_training_batch": "masking",
    "pipe_of": "sources",
    "prepare": "preparation",
    "prepare_pairs": "parallel.preparation",
    "read_lines": "documents",
    "read_pairs": "parallel.sources",
    "special_tokens": "parallel.vocabularies",
    "training_batch": "windows",
}

__all__ = sorted([*_FILE_OF, "evaluation_pair_batches", "stories"])


def __getattr__(name: str) -> Any:
    if name == "evaluation_pair_batches":
        return import_module("clearhead.data.parallel.batches").evaluation_batches
    if name == "stories":
        return import_module("clearhead.data.stories")
    if name in _FILE_OF:
        return getattr(import_module(f"clearhead.data.{_FILE_OF[name]}"), name)
    raise AttributeError(f"module 'clearhead.data' has no attribute '{name}'")
