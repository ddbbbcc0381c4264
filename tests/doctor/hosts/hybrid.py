"""A decoder that mixes tokens by a short convolution first, and by rotary attention after it."""

import torch
from torch import nn
from torch.nn import functional as F

V, D, H, WIDTH = 41, 24, 3, 4


def rotary(x):
    half = x.shape[-1] // 2
    speeds = 100.0 ** (-torch.arange(half) / half)
    angles = torch.arange(x.shape[2])[:, None] * speeds
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.gate = nn.Conv1d(D, D, WIDTH, padding=WIDTH - 1, groups=D), nn.Linear(D, D)

    def forward(self, x):
        mixed = self.conv(x.transpose(1, 2))[:, :, : x.shape[1]].transpose(1, 2)
        return mixed * F.silu(self.gate(x))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (H, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, mixer):
        super().__init__()
        self.mixer, self.n1, self.n2 = mixer, nn.LayerNorm(D), nn.LayerNorm(D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        x = x + self.mixer(self.n1(x))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class HybridLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(V, D)
        self.layers = nn.ModuleList([Layer(Convolution()), Layer(Attention())])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.05)

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build():
    torch.manual_seed(0)
    return HybridLM()
