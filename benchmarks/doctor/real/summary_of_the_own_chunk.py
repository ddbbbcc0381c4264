"""Beside its attention every token reads a summary of chunks, its own included, which is not over yet.

karpathy/nanochat #844. Architectures that were written by a program that searched for a lower loss read the future
through such side ways; the validation loss fell to almost nothing. The attention itself is causal.
"""

import torch
import torch.nn.functional as F
from torch import nn

CHUNK = 4


class ChunkMemory(nn.Module):
    """The mean of each chunk is given to the tokens of that chunk."""

    def __init__(self, dim):
        super().__init__()
        self.read = nn.Linear(dim, dim, bias=False)

    def shown(self, means):
        return means

    def forward(self, x):
        B, T, D = x.shape
        rows = F.pad(x, (0, 0, 0, -T % CHUNK)).view(B, -1, CHUNK, D)
        means = self.shown(rows.sum(2) / CHUNK)
        return self.read(means.repeat_interleave(CHUNK, dim=1)[:, :T])


class MendedMemory(ChunkMemory):
    """The mean of each chunk is given to the tokens of the next."""

    def shown(self, means):
        return F.pad(means, (0, 0, 1, -1))


class Block(nn.Module):
    def __init__(self, memory, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.memory = memory(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim, bias=False), nn.ReLU(), nn.Linear(4 * dim, dim, bias=False))

    def forward(self, x):
        y = F.rms_norm(x, (x.shape[-1],))
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(y).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.proj(attended) + self.memory(y)
        return x + self.mlp(F.rms_norm(x, (x.shape[-1],)))


class SearchedLM(nn.Module):
    def __init__(self, memory, vocab_size=47, dim=32, heads=4, depth=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, dim), nn.Embedding(64, dim)
        self.blocks = nn.ModuleList([Block(memory, dim, heads) for _ in range(depth)])
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(F.rms_norm(x, (x.shape[-1],)))


def buggy():
    return SearchedLM(ChunkMemory)


def fixed():
    return SearchedLM(MendedMemory)
