"""Positions are counted along the first axis, which is the batch.

cmu-l3/anlp-fall2025-code #1. By broadcasting all tokens of a row get the position that is their row's number. A
causal model learns almost as well, since the mask tells it the order; and row 0 has other logits than the same text
in row 3.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.attn_in, self.attn_out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.attn_in(self.norm1(x)).chunk(3, 2))
        x = x + self.attn_out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.ff(self.norm2(x))


class TransformerLM(nn.Module):
    def __init__(self, vocab=31, d=32, heads=4, layers=2, longest=64):
        super().__init__()
        self.embed, self.pos_embed = nn.Embedding(vocab, d), nn.Embedding(longest, d)
        self.layers = nn.ModuleList([Layer(d, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, vocab)

    def positions(self, x):
        return torch.arange(x.size(0), device=x.device).unsqueeze(1)

    def forward(self, x):
        h = self.embed(x) + self.pos_embed(self.positions(x))
        for layer in self.layers:
            h = layer(h)
        return self.out(self.norm(h))


class MendedLM(TransformerLM):
    def positions(self, x):
        return torch.arange(x.size(1), device=x.device).unsqueeze(0)


def buggy():
    return TransformerLM()


def fixed():
    return MendedLM()
