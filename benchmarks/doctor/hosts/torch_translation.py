"""Translation on torch.nn.Transformer, batch first, with learned positions and padding masks of both sides."""

import math

import torch
from torch import Tensor, nn

PAD_IDX = 0


class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size: int, emb_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size)
        self.emb_size = emb_size
        nn.init.normal_(self.embedding.weight, std=emb_size**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens) * math.sqrt(self.emb_size)


class Seq2SeqTransformer(nn.Module):
    def __init__(self, emb_size=32, nhead=4, layers=2, src_vocab=35, tgt_vocab=29, ffn=64, dropout=0.1, max_len=50):
        super().__init__()
        self.transformer = nn.Transformer(
            d_model=emb_size,
            nhead=nhead,
            num_encoder_layers=layers,
            num_decoder_layers=layers,
            dim_feedforward=ffn,
            dropout=dropout,
            batch_first=True,
        )
        self.src_tok_emb = TokenEmbedding(src_vocab, emb_size)
        self.tgt_tok_emb = TokenEmbedding(tgt_vocab, emb_size)
        self.src_pos = nn.Embedding(max_len, emb_size)
        self.tgt_pos = nn.Embedding(max_len, emb_size)
        self.dropout = nn.Dropout(dropout)
        self.generator = nn.Linear(emb_size, tgt_vocab)

    def embed_src(self, src: Tensor) -> Tensor:
        where = torch.arange(src.size(1), device=src.device)
        return self.dropout(self.src_tok_emb(src) + self.src_pos(where))

    def embed_tgt(self, tgt: Tensor) -> Tensor:
        where = torch.arange(tgt.size(1), device=tgt.device)
        return self.dropout(self.tgt_tok_emb(tgt) + self.tgt_pos(where))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        T = tgt.size(1)
        tgt_mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=tgt.device), diagonal=1)
        src_padding_mask = src == PAD_IDX
        tgt_padding_mask = tgt == PAD_IDX
        outs = self.transformer(
            self.embed_src(src),
            self.embed_tgt(tgt),
            src_mask=None,
            tgt_mask=tgt_mask,
            memory_mask=None,
            src_key_padding_mask=src_padding_mask,
            tgt_key_padding_mask=tgt_padding_mask,
            memory_key_padding_mask=src_padding_mask,
        )
        return self.generator(outs)


def build() -> nn.Module:
    return Seq2SeqTransformer()
