"""A cache of a sliding window is rolled when it is about to be full, not when it is.

huggingface/transformers #37574. Keys live in a buffer of as many places as the window. The step that fills the last
place is treated as if there were no place left: the oldest key goes although the window still holds it, and a place
that was never written stays among the others. Reading a text at once is right, and so is generating until the window
is full.
"""

import torch
from torch import nn

WINDOW = 8


class Attention(nn.Module):
    def __init__(self, d_model, n_heads, slack):
        super().__init__()
        self.n_heads, self.slack = n_heads, slack
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x, state, seen):
        """state: (2, B, H, WINDOW, K) or None; seen: how many tokens went before."""
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        if state is None:
            state = x.new_zeros(2, *k.shape[:2], WINDOW, k.shape[-1])
            last = torch.stack((k, v))[..., -WINDOW:, :]
            state[..., : last.shape[-2], :] = last
            distance = torch.arange(T)[:, None] - torch.arange(T)[None, :]
            allowed = (distance >= 0) & (distance < WINDOW)
        else:
            state = state.clone()
            for t in range(T):
                place = seen + t
                if place >= WINDOW - self.slack:
                    state = state.roll(-1, dims=-2)
                state[..., min(place, WINDOW - 1), :] = torch.stack((k, v))[..., t, :]
            k, v = state
            allowed = torch.arange(WINDOW)[None, :] < seen + T
        scores = (q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5).masked_fill(~allowed, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D)), state


class Block(nn.Module):
    def __init__(self, d_model, n_heads, slack):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attention = Attention(d_model, n_heads, slack)
        self.mlp = nn.Sequential(nn.Linear(d_model, 64), nn.GELU(), nn.Linear(64, d_model))

    def forward(self, x, state, seen):
        attended, state = self.attention(self.norm1(x), state, seen)
        x = x + attended
        return x + self.mlp(self.norm2(x)), state


class WindowLM(nn.Module):
    """ids (B, T), and a cache behind which one token at a time is read -> logits (B, T, V), the cache."""

    def __init__(self, slack, vocab_size=37, d_model=32, n_heads=4, n_layers=2):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.places = nn.Embedding(128, d_model)
        self.blocks = nn.ModuleList([Block(d_model, n_heads, slack) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, ids, past=None):
        states, seen = ([None] * len(self.blocks), 0) if past is None else past
        if seen and ids.shape[1] > 1:  # a window over several new tokens: one after the other
            pieces = []
            for piece in ids.split(1, dim=1):
                logits, past = self(piece, past)
                pieces.append(logits)
            return torch.cat(pieces, dim=1), past
        x = self.tokens(ids) + self.places(seen + torch.arange(ids.shape[1], device=ids.device))
        states = list(states)
        for number, block in enumerate(self.blocks):
            x, states[number] = block(x, states[number], seen)
        return self.head(self.norm(x)), (states, seen + ids.shape[1])


def buggy():
    return WindowLM(slack=1)


def fixed():
    return WindowLM(slack=0)
