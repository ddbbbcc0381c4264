"""The heads' results are joined by a reshape without their axis having been moved back.

jsbaan/transformer-from-scratch #6 (the same in ajhalthor/Transformer-Neural-Network #4). A token's result is made of
one head's results for several tokens. The exercise's own test, copying, was passed all the same: a network with room
to spare learns to undo it.
"""

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, hidden_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.kv = nn.Linear(hidden_dim, hidden_dim), nn.Linear(hidden_dim, 2 * hidden_dim)
        self.o = nn.Linear(hidden_dim, hidden_dim)

    def join(self, values):
        """(B, H, T, K) -> (B, T, H * K)"""
        B, H, T, K = values.shape
        return values.reshape(B, T, H * K)

    def forward(self, x, memory=None, allowed=None):
        memory = x if memory is None else memory
        B, T = x.shape[:2]
        q = self.q(x).reshape(B, T, self.num_heads, -1).permute(0, 2, 1, 3)
        k, v = self.kv(memory).reshape(B, memory.shape[1], 2, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        return self.o(self.join(scores.softmax(-1) @ v))


class MendedAttention(MultiHeadAttention):
    def join(self, values):
        return values.permute(0, 2, 1, 3).flatten(2)


class EncoderBlock(nn.Module):
    def __init__(self, attention, dim, heads):
        super().__init__()
        self.self_mha = attention(dim, heads)
        self.ff = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, dim))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x, src_mask):
        x = self.norm1(x + self.self_mha(x, allowed=src_mask))
        return self.norm2(x + self.ff(x))


class DecoderBlock(EncoderBlock):
    def __init__(self, attention, dim, heads):
        super().__init__(attention, dim, heads)
        self.cross_mha = attention(dim, heads)
        self.norm3 = nn.LayerNorm(dim)

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.norm1(x + self.self_mha(x, allowed=tgt_mask))
        x = self.norm3(x + self.cross_mha(x, memory, src_mask))
        return self.norm2(x + self.ff(x))


class CopyTransformer(nn.Module):
    """src (B, S), tgt (B, T), padded with 0 -> (B, T, V)."""

    def __init__(self, attention, vocab_size=31, dim=32, heads=4, layers=2, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.embed, self.where = nn.Embedding(vocab_size, dim), nn.Embedding(64, dim)
        self.encoder = nn.ModuleList([EncoderBlock(attention, dim, heads) for _ in range(layers)])
        self.decoder = nn.ModuleList([DecoderBlock(attention, dim, heads) for _ in range(layers)])
        self.head = nn.Linear(dim, vocab_size)

    def embedded(self, ids):
        return self.embed(ids) + self.where(torch.arange(ids.shape[1], device=ids.device))

    def forward(self, src, tgt):
        src_mask = (src != self.pad_id)[:, None, None, :]
        tgt_mask = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool, device=tgt.device).tril()
        x = self.embedded(src)
        for block in self.encoder:
            x = block(x, src_mask)
        y = self.embedded(tgt)
        for block in self.decoder:
            y = block(y, x, src_mask, tgt_mask)
        return self.head(y)


def buggy():
    return CopyTransformer(MultiHeadAttention)


def fixed():
    return CopyTransformer(MendedAttention)
