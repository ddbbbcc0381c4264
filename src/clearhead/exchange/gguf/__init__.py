"""GGUF: a model and its tokenizer in one file, as llama.cpp and its relatives read them."""

from clearhead.exchange.gguf.layouts import reader_advice
from clearhead.exchange.gguf.reading import open_gguf
from clearhead.exchange.gguf.saving import save_gguf

__all__ = ["open_gguf", "reader_advice", "save_gguf"]
