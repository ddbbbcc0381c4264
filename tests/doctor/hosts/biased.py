"""A decoder whose attention adds a slope times the key's position, and the residual; it could also read a memory."""

import torch
from torch import nn
from torch.nn import functional as F

V, D, H = 41, 24, 3
SLOPES = torch.tensor([0.5, 0.25, 0.125])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x, residual, memory=None, bias=None):
        seen = x if memory is None else memory
        q, k, v = (
            part(given).unflatten(-1, (H, -1)).transpose(1, 2)
            for part, given in ((self.q, x), (self.k, seen), (self.v, seen))
        )
        scores = q @ k.transpose(-2, -1) / (D // H) ** 0.5
        if bias is not None:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = (scores + bias).masked_fill(hidden, float("-inf"))
        y = scores.softmax(-1) @ v
        return residual + self.o(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.cross_attention = Attention(), Attention()
        self.n1, self.n2, self.cross_norm = nn.LayerNorm(D), nn.LayerNorm(D), nn.LayerNorm(D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x, memory, bias):
        x = self.attention(self.n1(x), x, bias=bias)
        if memory is not None:
            x = self.cross_attention(self.cross_norm(x), x, memory)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class BiasedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(V, D)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.05)

    def forward(self, ids, memory=None):
        bias = SLOPES[:, None, None] * torch.arange(ids.shape[1])
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, memory, bias)
        return self.head(self.norm(x))


def build():
    torch.manual_seed(0)
    return BiasedLM()
