"""Heads are split by a view straight into the batch, and joined by the reverse view.

reczoo/FuxiCTR #30 (AutoInt, DESTINE and InterHAt had it). The view keeps the order of memory, so what is called a
head holds whole stretches of the row: pieces of a few tokens attend to each other, and to no others. The two views
undo each other, so that all shapes are right.
"""

import torch
from torch import nn


class FieldAttention(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads, self.attention_dim = num_heads, width // num_heads
        self.W_q, self.W_k, self.W_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.W_res = nn.Linear(width, width, bias=False)

    def split(self, x):
        return x.view(x.shape[0] * self.num_heads, -1, self.attention_dim)

    def join(self, y, like):
        return y.view(like.shape)

    def forward(self, x):
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        weights = (q @ k.transpose(-2, -1) / self.attention_dim**0.5).softmax(-1)
        return (self.join(weights @ v, x) + self.W_res(x)).relu()


class MendedAttention(FieldAttention):
    def split(self, x):
        return x.view(*x.shape[:2], self.num_heads, self.attention_dim).transpose(1, 2)

    def join(self, y, like):
        return y.transpose(1, 2).reshape(like.shape)


class FieldTagger(nn.Module):
    """The values of a row's fields -> a class for each of them. Every field may look at every other."""

    def __init__(self, attention, n_values=37, n_fields=64, width=32, num_heads=4, n_layers=2, n_tags=11):
        super().__init__()
        self.values = nn.Embedding(n_values, width)
        self.fields = nn.Embedding(n_fields, width)
        self.layers = nn.ModuleList([attention(width, num_heads) for _ in range(n_layers)])
        self.classifier = nn.Linear(width, n_tags)

    def forward(self, x):
        h = self.values(x) + self.fields(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            h = layer(h)
        return self.classifier(h)


def buggy():
    return FieldTagger(FieldAttention)


def fixed():
    return FieldTagger(MendedAttention)
