"""A decoder with rotary positions, a sliding window and a key/value cache; returns (logits, cache)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def rotary(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """x (B, H, T, D), positions (T,): rotates neighboring pairs of channels."""
    dim = x.shape[-1]
    inv_freq = 10000.0 ** (-torch.arange(0, dim, 2, device=x.device).float() / dim)
    angles = positions[:, None].float() * inv_freq  # (T, D/2)
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class CachedAttention(nn.Module):
    def __init__(self, dim: int, heads: int, window: int, layer: int):
        super().__init__()
        self.heads = heads
        self.window = window
        self.layer = layer
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: torch.Tensor, offset: int, cache: tuple | None):
        T = x.shape[1]
        q_pos = torch.arange(offset, offset + T, device=x.device)
        q = rotary(self.split(self.to_q(x)), q_pos)
        k = rotary(self.split(self.to_k(x)), q_pos)
        v = self.split(self.to_v(x))
        if cache is not None:
            k = torch.cat((cache[0], k), dim=2)
            v = torch.cat((cache[1], v), dim=2)
        S = k.shape[2]
        k_pos = torch.arange(offset + T - S, offset + T, device=x.device)
        distance = q_pos[:, None] - k_pos[None, :]
        visible = (distance >= 0) & (distance < self.window)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        keep = self.window - 1  # a later query needs no more than this
        return self.to_out(out.transpose(1, 2).flatten(2)), (k[:, :, -keep:], v[:, :, -keep:])


class DecoderBlock(nn.Module):
    def __init__(self, dim: int, heads: int, window: int, layer: int):
        super().__init__()
        self.norm_attn = nn.LayerNorm(dim)
        self.attn = CachedAttention(dim, heads, window, layer)
        self.norm_mlp = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, offset, cache):
        a, cache = self.attn(self.norm_attn(x), offset, cache)
        x = x + a
        x = x + self.mlp(self.norm_mlp(x))
        return x, cache


class CachedDecoder(nn.Module):
    """Causal language model. Each token sees itself and the window - 1 tokens before it."""

    def __init__(self, vocab_size: int = 43, dim: int = 32, heads: int = 4, layers: int = 3, window: int = 8):
        super().__init__()
        self.window = window
        self.embed = nn.Embedding(vocab_size, dim)
        self.blocks = nn.ModuleList([DecoderBlock(dim, heads, window, i) for i in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.unembed = nn.Linear(dim, vocab_size, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                last = name.endswith(("to_out.weight", "mlp.2.weight"))
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if last else 0.02)

    def forward(self, ids: torch.Tensor, cache: dict | None = None):
        """ids (B, T) of the tokens after those in the cache -> logits (B, T, V) and the longer cache."""
        offset = cache["seen"] if cache is not None else 0
        past = cache["layers"] if cache is not None else [None] * len(self.blocks)
        x = self.embed(ids)
        present = []
        for block, layer_cache in zip(self.blocks, past, strict=True):
            x, layer_cache = block(x, offset, layer_cache)
            present.append(layer_cache)
        logits = self.unembed(self.norm(x))
        return logits, {"seen": offset + ids.shape[1], "layers": present}

    @torch.no_grad()
    def generate(self, ids: torch.Tensor, max_new_tokens: int) -> torch.Tensor:
        logits, cache = self(ids)
        for _ in range(max_new_tokens):
            new = logits[:, -1].argmax(-1, keepdim=True)
            ids = torch.cat((ids, new), dim=1)
            logits, cache = self(new, cache)
        return ids


def build():
    return CachedDecoder()
