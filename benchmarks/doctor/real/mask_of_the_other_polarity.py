"""A mask whose True means 'hide' is handed to a function whose True means 'keep'.

rasbt/LLMs-from-scratch #1061. The upper triangle suits masked_fill; scaled_dot_product_attention reads it the other
way round. Every token then sees only what comes after it, and nothing fails.
"""

import torch
import torch.nn.functional as F
from torch import nn


class MaskedAttention(nn.Module):
    def __init__(self, d_in, d_out, num_heads, context_length, dropout):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.qkv = nn.Linear(d_in, 3 * d_out)
        self.proj = nn.Linear(d_out, d_out)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1).bool())

    def given(self, n):
        return self.mask[:n, :n]

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.given(n), dropout_p=rate)
        return self.proj(y.transpose(1, 2).reshape(b, n, -1))


class MendedAttention(MaskedAttention):
    def given(self, n):
        return ~self.mask[:n, :n]


class Layer(nn.Module):
    def __init__(self, attention, width, num_heads, context_length):
        super().__init__()
        self.att = attention(width, width, num_heads, context_length, 0.1)
        self.ff = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm1, self.norm2, self.drop = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(0.1)

    def forward(self, x):
        x = x + self.drop(self.att(self.norm1(x)))
        return x + self.drop(self.ff(self.norm2(x)))


class BookGPT(nn.Module):
    def __init__(self, attention, vocab_size=39, width=32, num_heads=4, n_layers=2, context_length=48):
        super().__init__()
        self.tok_emb, self.pos_emb = nn.Embedding(vocab_size, width), nn.Embedding(context_length, width)
        self.layers = nn.Sequential(*[Layer(attention, width, num_heads, context_length) for _ in range(n_layers)])
        self.final_norm = nn.LayerNorm(width)
        self.out_head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, in_idx):
        x = self.tok_emb(in_idx) + self.pos_emb(torch.arange(in_idx.shape[1], device=in_idx.device))
        return self.out_head(self.final_norm(self.layers(x)))


def buggy():
    return BookGPT(MaskedAttention)


def fixed():
    return BookGPT(MendedAttention)
