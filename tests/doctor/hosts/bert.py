"""A BERT-like encoder from nn.MultiheadAttention, with a padding mask as transformers names it."""

import torch
import torch.nn.functional as F
from torch import nn

V, D = 67, 24


class TimeNorm(nn.Module):
    """Normalises over time as well; no healthy model uses it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x):
        return self.weight * (x - x.mean((1, 2), keepdim=True)) / (x.std((1, 2), keepdim=True) + 1e-5)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 3, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.up, self.down = nn.Linear(D, 48), nn.Linear(48, D)

    def forward(self, x, padding):
        y, _ = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)
        x = self.norm1(x + y)
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class BertForMaskedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(V, D, padding_idx=0), nn.Embedding(64, D)
        self.norm = nn.LayerNorm(D)
        self.layers = nn.ModuleList([Layer() for _ in range(2)])
        self.head = nn.Linear(D, V)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, input_ids, attention_mask=None):
        x = self.words(input_ids) + self.places.weight[: input_ids.size(1)]
        x = self.norm(x)
        padding = None if attention_mask is None else attention_mask == 0
        for layer in self.layers:
            x = layer(x, padding)
        return {"logits": self.head(x)}


def build():
    torch.manual_seed(0)
    return BertForMaskedLM()
