"""A query that sees only padding divides nothing by nothing; the loss never looks at it, and its gradient spoils all.

pytorch/pytorch #41508. nn.MultiheadAttention with a window and with padding: behind the end of a row there are
queries whose whole window is padding. Their softmax is NaN. They are left out of the loss, which is finite, but 0
times NaN is NaN, and the projections that all tokens share receive it. One short row is enough.
"""

import torch
import torch.nn.functional as F
from torch import nn


class LocalLayer(nn.Module):
    """Every token sees itself and the one before."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.attention = nn.MultiheadAttention(d_model, n_heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.linear1, self.linear2 = nn.Linear(d_model, 64), nn.Linear(64, d_model)

    def hidden(self, key_padding_mask, T):
        distance = torch.arange(T)[:, None] - torch.arange(T)[None, :]
        return ((distance < 0) | (distance > 1)) | key_padding_mask[:, None, :]  # (B, T, T)

    def forward(self, x, key_padding_mask):
        mask = self.hidden(key_padding_mask, x.shape[1]).repeat_interleave(self.n_heads, dim=0)
        y = self.norm1(x)
        y, _ = self.attention(y, y, y, attn_mask=mask)
        x = x + y
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class MendedLayer(LocalLayer):
    def hidden(self, key_padding_mask, T):
        return super().hidden(key_padding_mask, T) & ~torch.eye(T, dtype=torch.bool)


class LocalLM(nn.Module):
    """A causal language model over a short window. key_padding_mask: (B, T), True where a row is padded."""

    def __init__(self, layer, vocab_size=33, d_model=32, n_heads=4):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(64, d_model)
        self.layer = layer(d_model, n_heads)
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, ids, key_padding_mask=None):
        if key_padding_mask is None:
            key_padding_mask = torch.zeros_like(ids, dtype=torch.bool)
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.layer(x, key_padding_mask)))


def buggy():
    return LocalLM(LocalLayer)


def fixed():
    return LocalLM(MendedLayer)
