"""A character model the way the tutorials write it, in our own words: the peer of `tutorial_speed.py`.

Explicit softmax with a T x T mask, one projection per head group, dropout on the attention weights, a DataLoader over
every offset of the text, and generation that runs the whole window again for each new token.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class EveryOffset(Dataset[tuple[Tensor, Tensor]]):
    """All overlapping windows of the text."""

    def __init__(self, tokens: Tensor, block_size: int) -> None:
        self.tokens, self.block_size = tokens, block_size

    def __len__(self) -> int:
        return len(self.tokens) - self.block_size

    def __getitem__(self, start: int) -> tuple[Tensor, Tensor]:
        window = self.tokens[start : start + self.block_size + 1]
        return window[:-1], window[1:]


class SelfAttention(nn.Module):
    def __init__(self, d_model: int, n_heads: int, block_size: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.attention_dropout, self.dropout = nn.Dropout(dropout), nn.Dropout(dropout)
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size)))
        self.mask: Tensor

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        q, k, v = (
            f(x).view(B, T, self.n_heads, D // self.n_heads).transpose(1, 2) for f in (self.query, self.key, self.value)
        )  # (B, H, T, K)
        scores = q @ k.transpose(-2, -1) / math.sqrt(D // self.n_heads)  # (B, H, T, T)
        scores = scores.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
        weights = self.attention_dropout(F.softmax(scores, dim=-1))
        mixed = (weights @ v).transpose(1, 2).contiguous().view(B, T, D)
        return self.dropout(self.output(mixed))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, d_model: int, n_heads: int, block_size: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attention = SelfAttention(d_model, n_heads, block_size, dropout)
        self.feedforward = nn.Sequential(
            nn.Linear(d_model, 4 * d_model, bias=False),
            nn.ReLU(),
            nn.Linear(4 * d_model, d_model, bias=False),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feedforward(self.norm2(x))  # type: ignore[no-any-return]


class TutorialModel(nn.Module):
    """The tutorial's shape: 813,440 parameters at 65 characters."""

    def __init__(
        self,
        vocab_size: int = 65,
        block_size: int = 128,
        n_layers: int = 4,
        n_heads: int = 4,
        d_model: int = 128,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.block_size = block_size
        self.tokens, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(block_size, d_model)
        self.blocks = nn.Sequential(*(Block(d_model, n_heads, block_size, dropout) for _ in range(n_layers)))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.norm(self.blocks(x)) @ self.tokens.weight.T  # type: ignore[no-any-return]

    @torch.no_grad()
    def generate(self, ids: Tensor, new_tokens: int) -> Tensor:
        """The whole window again for each token."""
        for _ in range(new_tokens):
            logits = self(ids[:, -self.block_size :])[:, -1]
            ids = torch.cat([ids, torch.multinomial(F.softmax(logits, dim=-1), 1)], dim=1)
        return ids


def training_steps(model: TutorialModel, tokens: Tensor, batch_size: int) -> Iterator[float]:
    """Train for ever, a step at a time; yields the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    loader = DataLoader(EveryOffset(tokens, model.block_size), batch_size=batch_size, shuffle=True, drop_last=True)
    model.train()
    while True:
        for inputs, targets in loader:
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            yield loss.item()
