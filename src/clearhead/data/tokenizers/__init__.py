"""Text to token ids and back, and how a tokenizer from elsewhere is judged before it is used. Imports no torch."""

from clearhead.data.tokenizers.characters import UnseenCharacterError, code_points
from clearhead.data.tokenizers.chat_encoder import ChatEncoder, LongChatError
from clearhead.data.tokenizers.chat_template import ChatMessage, ChatTemplate, read_chat_template
from clearhead.data.tokenizers.render_process import ChatTemplateError
from clearhead.data.tokenizers.sandbox import read_safely
from clearhead.data.tokenizers.special import END_OF_DOCUMENT, MASK, PAD
from clearhead.data.tokenizers.tokenizer import Ids, Tokenizer

__all__ = [
    "END_OF_DOCUMENT",
    "MASK",
    "PAD",
    "ChatEncoder",
    "ChatMessage",
    "ChatTemplate",
    "ChatTemplateError",
    "Ids",
    "LongChatError",
    "Tokenizer",
    "UnseenCharacterError",
    "code_points",
    "read_chat_template",
    "read_safely",
]
