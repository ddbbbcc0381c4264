"""A language model the way the PyTorch tutorial builds one: nn.TransformerEncoder with a causal mask."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=64):
        super().__init__()
        self.p = dropout
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[: x.size(1)]
        return F.dropout(x, self.p, training=self.training)


class TransformerModel(nn.Module):
    def __init__(self, ntoken=29, d_model=32, nhead=4, d_hid=64, nlayers=3, dropout=0.1):
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(ntoken, d_model)
        self.pos_encoder = PositionalEncoding(d_model, dropout)
        encoder_layer = nn.TransformerEncoderLayer(
            d_model, nhead, d_hid, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.transformer_encoder = nn.TransformerEncoder(
            encoder_layer, nlayers, norm=nn.LayerNorm(d_model), enable_nested_tensor=False
        )
        self.linear = nn.Linear(d_model, ntoken)
        self.init_weights()

    def init_weights(self):
        for p in self.transformer_encoder.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        nn.init.normal_(self.embedding.weight, std=1 / math.sqrt(self.d_model))
        nn.init.zeros_(self.linear.bias)
        nn.init.uniform_(self.linear.weight, -0.1, 0.1)

    def forward(self, src):
        """src: (batch_size, seq_len). Returns (batch_size, seq_len, ntoken)."""
        x = self.embedding(src) * math.sqrt(self.d_model)
        x = self.pos_encoder(x)
        mask = nn.Transformer.generate_square_subsequent_mask(src.size(1)).to(src.device)
        x = self.transformer_encoder(x, mask)
        return self.linear(x)


def build():
    return TransformerModel()
