"""GGUF: a model and its tokenizer in one file, as llama.cpp and its relatives read them."""

from clearhead.exchange.gguf.reading import open_gguf
from clearhead.exchange.gguf.saving import save_gguf

__all__ = ["open_gguf", "save_gguf"]
