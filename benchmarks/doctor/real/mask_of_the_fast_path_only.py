"""Only the fused kernel knows that the attention is causal; where it is not used, nobody hides the future.

keras-team/keras #23038. With dropout in training the plain softmax is taken instead of the kernel, and the mask was
left out because the kernel makes its own. So the model cheats in training, and is right wherever it is looked at.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = nn.Dropout(dropout)
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)

    def hide(self, scores):
        return scores

    def plain(self, q, k, v):
        scores = self.hide(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5)
        return self.dropout(scores.softmax(-1)) @ v

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        if self.training and self.dropout.p > 0:
            y = self.plain(q, k, v)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(y.transpose(1, 2).flatten(2))


class MendedAttention(Attention):
    def hide(self, scores):
        return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))


class Block(nn.Module):
    def __init__(self, attention, dim):
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dense = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.dense(x))


class TextDecoder(nn.Module):
    def __init__(self, attention, vocab_size=37, dim=32, heads=4, n_layers=2):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocab_size, dim), nn.Embedding(64, dim)
        self.blocks = nn.ModuleList([Block(attention(dim, heads, 0.1), dim) for _ in range(n_layers)])
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def buggy():
    return TextDecoder(Attention)


def fixed():
    return TextDecoder(MendedAttention)
