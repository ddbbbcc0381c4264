"""Text as tokens: corpora, tokenizers, windows, sentence pairs. Knows no model.

What needs torch loads it when it is touched: a stranger's tokenizer is judged before that.
"""

from clearhead.lazy import attach

TYPE_CHECKING = False  # as `typing` has it, which takes a while to load
if TYPE_CHECKING:  # what type checkers and editors see; below is the same, loaded when it is first touched
    from clearhead.data import stories as stories
    from clearhead.data.corpora import CORPORA as CORPORA
    from clearhead.data.corpora import Corpus as Corpus
    from clearhead.data.documents import read_lines as read_lines
    from clearhead.data.grammar_score import GrammarScore as GrammarScore
    from clearhead.data.masking import Masking as Masking
    from clearhead.data.masking import masked_evaluation_batches as masked_evaluation_batches
    from clearhead.data.masking import masked_training_batch as masked_training_batch
    from clearhead.data.parallel.batches import PairBatch as PairBatch
    from clearhead.data.parallel.batches import PairBatches as PairBatches
    from clearhead.data.parallel.batches import evaluation_pair_batches as evaluation_pair_batches
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
    from clearhead.data.sources import short_name as short_name
    from clearhead.data.sources import text_bytes as text_bytes
    from clearhead.data.tokenizers import ChatEncoder as ChatEncoder
    from clearhead.data.tokenizers import ChatMessage as ChatMessage
    from clearhead.data.tokenizers import ChatTemplate as ChatTemplate
    from clearhead.data.tokenizers import ChatTemplateError as ChatTemplateError
    from clearhead.data.tokenizers import LongChatError as LongChatError
    from clearhead.data.tokenizers import Tokenizer as Tokenizer
    from clearhead.data.tokenizers import UnseenCharacterError as UnseenCharacterError
    from clearhead.data.tokenizers import read_chat_template as read_chat_template
    from clearhead.data.windows import IGNORED as IGNORED
    from clearhead.data.windows import Batch as Batch
    from clearhead.data.windows import document_numbers as document_numbers
    from clearhead.data.windows import evaluation_batches as evaluation_batches
    from clearhead.data.windows import training_batch as training_batch

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "corpora": ("CORPORA", "Corpus"),
        "grammar_score": ("GrammarScore",),
        "documents": ("read_lines",),
        "masking": ("Masking", "masked_evaluation_batches", "masked_training_batch"),
        "parallel.batches": ("PairBatch", "PairBatches", "evaluation_pair_batches"),
        "parallel.corpora": ("PAIR_CORPORA", "PairCorpus"),
        "parallel.encoded": ("EncodedPairs", "encode_pairs"),
        "parallel.preparation": ("PairData", "prepare_pairs"),
        "parallel.sources": ("is_pairs", "read_pairs"),
        "parallel.vocabularies": ("special_tokens",),
        "preparation": ("MIN_CHARACTERS", "TextData", "encode_for_evaluation", "prepare"),
        "sources": ("pipe_of", "short_name", "text_bytes"),
        "tokenizers": (
            "ChatEncoder",
            "ChatMessage",
            "ChatTemplate",
            "ChatTemplateError",
            "LongChatError",
            "Tokenizer",
            "UnseenCharacterError",
            "read_chat_template",
        ),
        "windows": ("Batch", "IGNORED", "document_numbers", "evaluation_batches", "training_batch"),
    },
    submodules=("stories",),
)
