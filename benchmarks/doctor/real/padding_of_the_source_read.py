"""The decoder's cross-attention gets no mask of the source: it reads the padding behind short sources.

speechbrain/speechbrain #1107. The encoder is masked, the decoder is not. A sentence is then translated otherwise
beside a longer one than alone, and a beam search over several sentences scores worse than one by one.
"""

import torch
from torch import nn


class SourceReader(nn.Module):
    """src (B, S), padded with 0, and tgt (B, T) -> (B, T, V)."""

    def __init__(self, src_vocab=35, tgt_vocab=31, d_model=32, n_heads=4, n_layers=2, pad_idx=0):
        super().__init__()
        self.pad_idx = pad_idx
        self.src_embed = nn.Embedding(src_vocab, d_model, padding_idx=pad_idx)
        self.tgt_embed = nn.Embedding(tgt_vocab, d_model, padding_idx=pad_idx)
        self.place = nn.Embedding(64, d_model)
        encoder = nn.TransformerEncoderLayer(d_model, n_heads, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder, n_layers, enable_nested_tensor=False)
        self.decoder = nn.ModuleList(
            [nn.TransformerDecoderLayer(d_model, n_heads, 64, batch_first=True) for _ in range(n_layers)]
        )
        self.generator = nn.Linear(d_model, tgt_vocab)
        for parameter in self.encoder.parameters():
            if parameter.dim() > 1:  # its layers are copies of one
                nn.init.xavier_uniform_(parameter)

    def embedded(self, table, ids):
        return table(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))

    def decode(self, tgt, memory, padded):
        causal = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool, device=tgt.device).triu(1)
        y = self.embedded(self.tgt_embed, tgt)
        for layer in self.decoder:
            y = layer(y, memory, tgt_mask=causal)
        return self.generator(y)

    def forward(self, src, tgt):
        padded = src == self.pad_idx
        memory = self.encoder(self.embedded(self.src_embed, src), src_key_padding_mask=padded)
        return self.decode(tgt, memory, padded)


class MendedReader(SourceReader):
    def decode(self, tgt, memory, padded):
        causal = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool, device=tgt.device).triu(1)
        y = self.embedded(self.tgt_embed, tgt)
        for layer in self.decoder:
            y = layer(y, memory, tgt_mask=causal, memory_key_padding_mask=padded)
        return self.generator(y)


def buggy():
    return SourceReader()


def fixed():
    return MendedReader()
