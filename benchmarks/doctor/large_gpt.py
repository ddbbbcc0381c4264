"""The GPT of `hosts/nano.py` in the size of GPT-2: 124 million parameters."""

from hosts.nano import GPT, GPTConfig
from torch import nn


def build() -> nn.Module:
    """Twelve layers, 768 wide, 50257 tokens, tied."""
    sizes = GPTConfig(block_size=1024, vocab_size=50257, n_layer=12, n_head=12, n_embd=768, bias=True)
    model: nn.Module = GPT(sizes)  # type: ignore[no-untyped-call]
    return model
