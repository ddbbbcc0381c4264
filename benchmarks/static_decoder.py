"""A decoder's step as gpt-fast writes it, from the weights of a model of ours: the peer of `native_speed.py`.

Keys and values lie in tensors of a fixed length, the position is a tensor, the mask a comparison, and one matrix makes
queries, keys and values. It knows what the shapes of that benchmark have: learned positions, no gate, tied embeddings.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.models import DecoderLM


class StaticBlock(nn.Module):
    """A block of ours for one token, with keys and values in tensors of a fixed length."""

    def __init__(self, block: Any, length: int) -> None:
        super().__init__()
        attention, feedforward = block.self_attention.part, block.feedforward.part
        self.heads, self.head_dim, self.activation = attention.n_heads, attention.head_dim, feedforward.activation
        self.attention_norm, self.feedforward_norm = block.self_attention.norm, block.feedforward.norm
        self.output, self.up, self.down = attention.output, feedforward.up, feedforward.down
        parts = (attention.query, attention.key, attention.value)
        self.projection = nn.Linear(self.output.in_features, 3 * self.output.in_features, self.output.bias is not None)
        with torch.no_grad():
            self.projection.weight.copy_(torch.cat([part.weight for part in parts]))
            if self.output.bias is not None:
                self.projection.bias.copy_(torch.cat([part.bias for part in parts]))
        self.keys, self.values = (nn.Buffer(torch.zeros(1, self.heads, length, self.head_dim)) for _ in range(2))

    def forward(self, x: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """(1, D) -> (1, D)."""
        projected = self.projection(self.attention_norm(x)).view(3, 1, self.heads, 1, self.head_dim)
        query, key, value = projected.unbind()  # (1, H, 1, K)
        self.keys[:, :, position] = key
        self.values[:, :, position] = value
        mixed = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)  # (1, H, 1, K)
        x = x + self.output(mixed.view(1, -1))
        hidden: Tensor = self.down(self.activation(self.up(self.feedforward_norm(x))))
        return x + hidden


class StaticDecoder(nn.Module):
    """A decoder's step in plain PyTorch, which compilers see as one graph with no shape that changes."""

    def __init__(self, model: DecoderLM, length: int) -> None:
        super().__init__()
        self.embedding, self.positions = model.embedding.weight, model.positions.get_parameter("weight")
        self.blocks = nn.ModuleList(StaticBlock(block, length) for block in model.stack.blocks)
        self.norm = model.stack.norm
        self.indices = nn.Buffer(torch.arange(length))

    def forward(self, token: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest next token (1,), and the logits (1, V), after this token (1,) at this position (1,)."""
        x = self.embedding[token] + self.positions[position]  # (1, D)
        mask = (self.indices <= position).view(1, 1, 1, -1)
        for block in self.blocks:
            x = block(x, position, mask)
        logits = F.linear(self.norm(x), self.embedding)
        return logits.argmax(-1), logits
