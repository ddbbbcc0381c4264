"""torch's encoder layers are given (batch, time, features), and read it as (time, batch, features).

DaoyuanLi2816/Molecule-Generator #22 (the same in IBM/TabFormer #14). batch_first=True is missing: molecules of one
batch attend to each other, and the symbols of a molecule do not. The bigger the batch, the better it seems; one
molecule by itself is read as symbols without a context.
"""

import torch
from torch import nn


class MoleculeEncoder(nn.Module):
    """Masked symbols of a molecule are guessed from all others. Padding is token 0."""

    def __init__(self, batch_first, vocab_size=33, d_model=32, n_heads=4, n_layers=2, pad_idx=0):
        super().__init__()
        self.pad_idx, self.batch_first = pad_idx, batch_first
        self.embedding = nn.Embedding(vocab_size, d_model, padding_idx=pad_idx)
        self.position = nn.Embedding(64, d_model)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(d_model, n_heads, 64, batch_first=batch_first) for _ in range(n_layers)]
        )
        self.decode = nn.Linear(d_model, vocab_size)

    def forward(self, x):
        h = self.embedding(x) + self.position(torch.arange(x.shape[1], device=x.device))
        padded = (x == self.pad_idx) if self.batch_first else None
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=padded)
        return self.decode(h)


def buggy():
    return MoleculeEncoder(batch_first=False)


def fixed():
    return MoleculeEncoder(batch_first=True)
