"""Distances between queries and keys are counted from 0 on both sides, also where a cache stands before the queries.

huggingface/transformers #19045. A BERT that is used as a decoder has a table of distances in its scores. With a cache
there is one query and many keys, and the query is given the position 0 instead of the last. Without the cache the
same model answers otherwise.
"""

import torch
from torch import nn


class RelativeAttention(nn.Module):
    def __init__(self, d_model, n_heads, longest=64):
        super().__init__()
        self.n_heads, self.d_head, self.longest = n_heads, d_model // n_heads, longest
        self.query, self.key, self.value = (nn.Linear(d_model, d_model) for _ in range(3))
        self.out = nn.Linear(d_model, d_model)
        self.distance_embedding = nn.Embedding(2 * longest - 1, self.d_head)

    def heads(self, x):
        return x.view(*x.shape[:2], self.n_heads, self.d_head).transpose(1, 2)

    def query_positions(self, n_queries, n_keys):
        return torch.arange(n_queries)

    def forward(self, x, past_key_value=None):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        if past_key_value is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(past_key_value, (k, v), strict=True))
        n, m = q.shape[2], k.shape[2]
        distance = self.query_positions(n, m)[:, None] - torch.arange(m)[None, :]
        table = self.distance_embedding(distance + self.longest - 1)  # (n, m, K)
        scores = (q @ k.transpose(-2, -1) + torch.einsum("bhnk,nmk->bhnm", q, table)) / self.d_head**0.5
        scores = scores.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(1 + m - n), torch.finfo(scores.dtype).min)
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.out(y), (k, v)


class MendedAttention(RelativeAttention):
    def query_positions(self, n_queries, n_keys):
        return torch.arange(n_keys - n_queries, n_keys)


class Layer(nn.Module):
    def __init__(self, attention, d_model):
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, 64), nn.GELU(), nn.Linear(64, d_model))

    def forward(self, x, past_key_value):
        attended, present = self.attention(x, past_key_value)
        x = self.norm1(x + attended)
        return self.norm2(x + self.feed_forward(x)), present


class BertDecoder(nn.Module):
    """Writes one token after the other."""

    def __init__(self, attention, vocab_size=43, d_model=32, n_heads=4, n_layers=2):
        super().__init__()
        self.words = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList([Layer(attention(d_model, n_heads), d_model) for _ in range(n_layers)])
        self.lm_head = nn.Linear(d_model, vocab_size)

    def forward(self, input_ids, past_key_values=None):
        x, presents = self.words(input_ids), []
        for layer, past in zip(self.layers, past_key_values or [None] * len(self.layers), strict=True):
            x, present = layer(x, past)
            presents.append(present)
        return {"logits": self.lm_head(x), "past_key_values": presents}


def buggy():
    return BertDecoder(RelativeAttention)


def fixed():
    return BertDecoder(MendedAttention)
