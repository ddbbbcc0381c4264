"""Heads come first in the folded batch, and the mask is repeated sample by sample.

lsdefine/attention-is-all-you-need-keras #36. Place 1 of the folded axis is sample 1 of head 0, and its mask is the
second copy of sample 0's. All is well while all rows have one length; otherwise most heads read another sample's
padding.
"""

import torch
from torch import nn


class FoldedAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.qs, self.ks, self.vs = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.w_o = nn.Linear(d_model, d_model)

    def fold(self, x):
        """(B, T, D) -> (H * B, T, K), heads first"""
        return x.unflatten(-1, (self.n_head, -1)).permute(2, 0, 1, 3).flatten(0, 1)

    def repeated(self, mask):
        return mask.repeat_interleave(self.n_head, dim=0)

    def forward(self, x, mask):
        q, k, v = self.fold(self.qs(x)), self.fold(self.ks(x)), self.fold(self.vs(x))
        scores = q @ k.transpose(1, 2) / k.shape[-1] ** 0.5
        scores = scores.masked_fill(~self.repeated(mask), -1e9)
        y = (scores.softmax(-1) @ v).unflatten(0, (self.n_head, -1)).permute(1, 2, 0, 3).flatten(2)
        return self.w_o(y)


class MendedAttention(FoldedAttention):
    def repeated(self, mask):
        return mask.repeat(self.n_head, 1, 1)


class EncoderLayer(nn.Module):
    def __init__(self, attention, d_model):
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, 64), nn.ReLU(), nn.Linear(64, d_model))

    def forward(self, x, mask):
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.feed_forward(x))


class SequenceTagger(nn.Module):
    """tokens (B, T), padded with 0 -> a tag for each; looks both ways."""

    def __init__(self, attention, n_tokens=35, d_model=32, n_head=4, n_layers=2, n_tags=13, pad=0):
        super().__init__()
        self.pad = pad
        self.embed, self.pos_embed = nn.Embedding(n_tokens, d_model, padding_idx=pad), nn.Embedding(64, d_model)
        self.layers = nn.ModuleList([EncoderLayer(attention(d_model, n_head), d_model) for _ in range(n_layers)])
        self.tags = nn.Linear(d_model, n_tags)

    def forward(self, tokens):
        mask = (tokens != self.pad)[:, None, :].expand(-1, tokens.shape[1], -1)
        x = self.embed(tokens) + self.pos_embed(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x, mask)
        return self.tags(x)


def buggy():
    return SequenceTagger(FoldedAttention)


def fixed():
    return SequenceTagger(MendedAttention)
