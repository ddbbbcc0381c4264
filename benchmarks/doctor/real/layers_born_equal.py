"""nn.TransformerEncoder makes its layers by copying one: all begin with the same numbers.

pytorch/pytorch #72253. The copies are deep ones, so that they can part; but they are drawn once. A person who counts
on layers that start differently has to draw them again.
"""

import torch
from torch import nn


class CausalEncoder(nn.Module):
    """A decoder-only language model of torch's own parts."""

    def __init__(self, vocab_size=35, d_model=32, n_heads=4, n_layers=3):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(64, d_model)
        layer = nn.TransformerEncoderLayer(d_model, n_heads, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, n_layers, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, ids):
        T = ids.shape[1]
        x = self.embedding(ids) + self.positions(torch.arange(T, device=ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(T, device=ids.device)
        return self.head(self.encoder(x, mask=mask, is_causal=True))


def buggy():
    return CausalEncoder()


def fixed():
    model = CausalEncoder()
    for layer in model.encoder.layers:
        for parameter in layer.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
    return model
