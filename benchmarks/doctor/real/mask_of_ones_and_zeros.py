"""A mask of ones and zeros goes where one of zeros and minus infinity is expected: into a sum with the scores.

google/gemma_pytorch #73. Local and global layers alternate. The caller builds a lower triangle of ones; the local
layers put a huge negative number outside of their window, on both sides of it, and everything else they leave as it
was. So the future within the window has 0 and the past has 1, and in a global layer nothing is hidden at all.
"""

import torch
from torch import nn

OUTSIDE = -2.3819763e38


class Attention(nn.Module):
    def __init__(self, d_model, n_heads, window):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, mask):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (D // self.n_heads) ** 0.5
        if self.window is not None:
            ones = torch.ones_like(mask)
            near = torch.triu(ones, 1 - self.window) * torch.tril(ones, self.window - 1)
            mask = torch.where(near == 1, mask, OUTSIDE)
        weights = (scores + mask).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, D))


class Block(nn.Module):
    def __init__(self, d_model, n_heads, window):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(d_model), nn.RMSNorm(d_model)
        self.attention = Attention(d_model, n_heads, window)
        self.mlp = nn.Sequential(nn.Linear(d_model, 64), nn.GELU(), nn.Linear(64, d_model))

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class LocalGlobalLM(nn.Module):
    def __init__(self, make_mask, vocab_size=37, d_model=32, n_heads=4, window=5, block_size=64):
        super().__init__()
        self.make_mask = make_mask
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.places = nn.Embedding(block_size, d_model)
        self.blocks = nn.ModuleList([Block(d_model, n_heads, window), Block(d_model, n_heads, None)])
        self.norm = nn.RMSNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, ids):
        T = ids.shape[1]
        x = self.tokens(ids) + self.places(torch.arange(T, device=ids.device))
        for block in self.blocks:
            x = block(x, self.make_mask(T))
        return self.head(self.norm(x))


def ones_below(T):
    return torch.ones(T, T).tril()


def zeros_below(T):
    return torch.full((T, T), OUTSIDE).triu(1)


def buggy():
    return LocalGlobalLM(ones_below)


def fixed():
    return LocalGlobalLM(zeros_below)
