"""A small healthy language model in plain parts, to be made odd or broken by a test."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

V, D, H, MAX_LENGTH = 37, 16, 2, 32


def triangle(T: int) -> Tensor:
    return torch.ones(T, T, dtype=torch.bool).tril()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(y.transpose(1, 2).reshape(B, T, D))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, feedforward: nn.Module | None = None) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(), nn.LayerNorm(D), nn.LayerNorm(D)
        self.feedforward = feedforward or nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), allowed)
        return x + self.feedforward(self.norm2(x))  # type: ignore[no-any-return]


class CausalModel(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(MAX_LENGTH, D)
        self.blocks = nn.ModuleList(blocks or [Block(), Block()])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def hidden(self, ids: Tensor, allowed: Tensor | None = None) -> Tensor:
        T = ids.shape[1]
        x = self.tokens(ids) + self.places(torch.arange(T))
        for block in self.blocks:
            x = block(x, triangle(T) if allowed is None else allowed & triangle(T))
        return self.norm(x)  # type: ignore[no-any-return]

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.hidden(ids))
