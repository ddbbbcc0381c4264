"""A language model from torch's own layers, time first, as its tutorial has it."""

import math

import torch
from torch import nn

V, D = 59, 24


class PositionalEncoding(nn.Module):
    def __init__(self):
        super().__init__()
        position, step = torch.arange(64).unsqueeze(1), torch.exp(torch.arange(0, D, 2) * (-math.log(10000.0) / D))
        pe = torch.zeros(64, 1, D)
        pe[:, 0, 0::2] = torch.sin(position * step)
        pe[:, 0, 1::2] = torch.cos(position * step)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(0)]


class TransformerModel(nn.Module):
    """Predicts the next token; src is (T, B)."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.positions = PositionalEncoding()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 3, 48, 0.1), 2, enable_nested_tensor=False)
        self.linear = nn.Linear(D, V)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.uniform_(p, -0.1, 0.1)

    def forward(self, src):
        mask = nn.Transformer.generate_square_subsequent_mask(len(src))
        x = self.positions(self.embedding(src) * math.sqrt(D))
        return self.linear(self.encoder(x, mask))


def build():
    torch.manual_seed(0)
    return TransformerModel()
