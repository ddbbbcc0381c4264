"""GGUF: a model and its tokenizer in one file, as llama.cpp and its relatives read them."""

from clearhead.interop.gguf.layouts import reader_advice, unread_settings
from clearhead.interop.gguf.reading import open_gguf
from clearhead.interop.gguf.saving import save_gguf

__all__ = ["open_gguf", "reader_advice", "save_gguf", "unread_settings"]
