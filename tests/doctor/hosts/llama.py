"""A Llama-like decoder: rotary positions, grouped queries, RMSNorm, SwiGLU, fused attention, an optional cache."""

import torch
import torch.nn.functional as F
from torch import nn

V, D, H, KV, LAYERS = 53, 32, 4, 2, 2
K = D // H


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def angles(positions):
    inverse = 1.0 / (10000 ** (torch.arange(0, K, 2).float() / K))
    turned = positions[:, None].float() * inverse[None, :]
    turned = torch.cat((turned, turned), dim=-1)
    return turned.cos(), turned.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(D, H * K, bias=False)
        self.wk = nn.Linear(D, KV * K, bias=False)
        self.wv = nn.Linear(D, KV * K, bias=False)
        self.wo = nn.Linear(H * K, D, bias=False)

    def forward(self, x, past):
        B, T, _ = x.shape
        start = 0 if past is None else past[0].shape[2]
        cos, sin = angles(torch.arange(start, start + T))
        q = self.wq(x).view(B, T, H, K).transpose(1, 2)
        k = self.wk(x).view(B, T, KV, K).transpose(1, 2)
        v = self.wv(x).view(B, T, KV, K).transpose(1, 2)
        q = rotate(q, cos, sin)
        k = rotate(k, cos, sin)
        if past is not None:
            k = torch.cat((past[0], k), dim=2)
            v = torch.cat((past[1], v), dim=2)
        now = (k, v)
        k = k.repeat_interleave(H // KV, dim=1)
        v = v.repeat_interleave(H // KV, dim=1)
        L = k.shape[2]
        mask = torch.ones(T, L, dtype=torch.bool).tril(L - T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(B, T, -1)), now


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, 64, bias=False)
        self.up = nn.Linear(D, 64, bias=False)
        self.down = nn.Linear(64, D, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = RMSNorm()
        self.attention = Attention()
        self.ffn_norm = RMSNorm()
        self.ffn = FeedForward()

    def forward(self, x, past):
        y, now = self.attention(self.attention_norm(x), past)
        x = x + y
        return x + self.ffn(self.ffn_norm(x)), now


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = RMSNorm()
        self.out = nn.Linear(D, V, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, cache=None):
        x = self.embed(tokens)
        new = []
        for i, layer in enumerate(self.layers):
            x, now = layer(x, None if cache is None else cache[i])
            new.append(now)
        return self.out(self.norm(x)), new


def build():
    torch.manual_seed(0)
    return Llama()
