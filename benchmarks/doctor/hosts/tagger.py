"""Tags each symbol of a fixed-length record, on torch.nn.TransformerEncoder. Both directions are seen."""

import torch
from torch import nn


class RecordTagger(nn.Module):
    """(batch, length) symbols -> (batch, length, n_tags) scores. Records are never padded."""

    def __init__(self, n_symbols=23, n_tags=23, d_model=32, nhead=4, num_layers=2, max_len=40):
        super().__init__()
        self.embedding = nn.Embedding(n_symbols, d_model)
        self.position = nn.Parameter(torch.randn(1, max_len, d_model) * 0.1)
        layer = nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward=64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers)
        self.classifier = nn.Linear(d_model, n_tags)
        for p in self.encoder.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, symbols):
        x = self.embedding(symbols) + self.position[:, : symbols.size(1)]
        x = self.encoder(x)
        return self.classifier(x)


def build():
    return RecordTagger()
