"""Three projections are fused into one, and stay where they were: whoever trains them trains nothing.

huggingface/diffusers #11903. The fused layer is a copy made once. The three old ones are still parameters, still
saved, and still found by name: an adapter or an average that is put on them is never used.
"""

import torch
import torch.nn.functional as F
from torch import nn


class FusableAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.to_qkv = heads, None
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.to_out = nn.Linear(dim, dim)

    def fuse(self):
        dim = self.to_q.in_features
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        with torch.no_grad():
            self.to_qkv.weight.copy_(torch.cat([self.to_q.weight, self.to_k.weight, self.to_v.weight]))

    def projected(self, x):
        if self.to_qkv is None:
            return self.to_q(x), self.to_k(x), self.to_v(x)
        return self.to_qkv(x).chunk(3, dim=-1)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.projected(x))
        return self.to_out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MendedAttention(FusableAttention):
    def fuse(self):
        super().fuse()
        del self.to_q, self.to_k, self.to_v


class Block(nn.Module):
    def __init__(self, attention, dim):
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 96), nn.GELU(), nn.Linear(96, dim))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.ff(self.norm2(x))


class Prior(nn.Module):
    """Writes codes of an image one after the other."""

    def __init__(self, attention, n_codes=41, dim=32, heads=4, depth=2):
        super().__init__()
        self.codes, self.places = nn.Embedding(n_codes, dim), nn.Embedding(64, dim)
        self.blocks = nn.ModuleList([Block(attention(dim, heads), dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, n_codes)

    def fuse_qkv_projections(self):
        for block in self.blocks:
            block.attention.fuse()
        return self

    def forward(self, codes):
        x = self.codes(codes) + self.places(torch.arange(codes.shape[1], device=codes.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def buggy():
    return Prior(FusableAttention).fuse_qkv_projections()


def fixed():
    return Prior(MendedAttention).fuse_qkv_projections()
