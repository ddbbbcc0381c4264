"""The fused attention is given its dropout in evaluation too.

pytorch/pytorch #124464 (also seen in pytorch-image-models #1978 and wenet #2699). scaled_dot_product_attention is a
function: it knows no eval(), and drops weights whenever dropout_p is not zero. Every score of the evaluated model is
noisy.
"""

import torch
import torch.nn.functional as F
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)

    def rate(self):
        return self.dropout

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate(), is_causal=True)
        return self.to_out(y.transpose(1, 2).flatten(2))


class MendedAttention(SelfAttention):
    def rate(self):
        return self.dropout if self.training else 0.0


class Block(nn.Module):
    def __init__(self, attn, width):
        super().__init__()
        self.attn = attn
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ff = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.ff(self.ln2(x))


class LanguageModel(nn.Module):
    def __init__(self, attention, vocab=39, width=32, heads=4, depth=2, dropout=0.1):
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.place = nn.Parameter(0.02 * torch.randn(64, width))
        self.blocks = nn.ModuleList([Block(attention(width, heads, dropout), width) for _ in range(depth)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens):
        x = self.token(tokens) + self.place[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def buggy():
    return LanguageModel(SelfAttention)


def fixed():
    return LanguageModel(MendedAttention)
