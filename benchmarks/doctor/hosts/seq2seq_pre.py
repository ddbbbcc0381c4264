"""Encoder-decoder for translation, pre-norm, sinusoidal positions; masks come from the padding id."""

import math

import torch
import torch.nn as nn

PAD = 0


def sinusoid(length, dim):
    position = torch.arange(length).float()[:, None]
    rate = 10000 ** (-torch.arange(0, dim, 2).float() / dim)
    table = torch.zeros(length, dim)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate)
    return table


class MultiHeadAttention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.wq = nn.Linear(dim, dim)
        self.wk = nn.Linear(dim, dim)
        self.wv = nn.Linear(dim, dim)
        self.fc = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask):
        """mask: True where attention is allowed, broadcastable to (B, heads, T_query, T_key)."""
        B = query.size(0)
        Q = self.wq(query).view(B, -1, self.heads, self.head_dim).transpose(1, 2)
        K = self.wk(key).view(B, -1, self.heads, self.head_dim).transpose(1, 2)
        V = self.wv(value).view(B, -1, self.heads, self.head_dim).transpose(1, 2)
        energy = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(self.head_dim)
        energy = energy.masked_fill(~mask, -1e30)
        attention = torch.softmax(energy, dim=-1)
        x = torch.matmul(self.dropout(attention), V)
        x = x.transpose(1, 2).reshape(B, -1, self.heads * self.head_dim)
        return self.fc(x)


class FeedForward(nn.Module):
    def __init__(self, dim, hidden, dropout):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.fc2(self.dropout(torch.relu(self.fc1(x))))


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, hidden, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.self_attention = MultiHeadAttention(dim, heads, dropout)
        self.feed_forward = FeedForward(dim, hidden, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, src_mask):
        h = self.norm1(src)
        src = src + self.dropout(self.self_attention(h, h, h, src_mask))
        h = self.norm2(src)
        return src + self.dropout(self.feed_forward(h))


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads, hidden, dropout):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.self_attention = MultiHeadAttention(dim, heads, dropout)
        self.cross_attention = MultiHeadAttention(dim, heads, dropout)
        self.feed_forward = FeedForward(dim, hidden, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tgt, memory, tgt_mask, src_mask):
        h = self.norm1(tgt)
        tgt = tgt + self.dropout(self.self_attention(h, h, h, tgt_mask))
        h = self.norm2(tgt)
        tgt = tgt + self.dropout(self.cross_attention(h, memory, memory, src_mask))
        h = self.norm3(tgt)
        return tgt + self.dropout(self.feed_forward(h))


class Seq2Seq(nn.Module):
    """forward(src, tgt): ids (B, S) and (B, T), both right-padded with 0; returns logits (B, T, V)."""

    def __init__(self, src_vocab=31, tgt_vocab=37, dim=32, heads=4, hidden=64, layers=2, dropout=0.1, max_len=64):
        super().__init__()
        self.dim = dim
        self.src_embedding = nn.Embedding(src_vocab, dim, padding_idx=PAD)
        self.tgt_embedding = nn.Embedding(tgt_vocab, dim, padding_idx=PAD)
        self.register_buffer("positions", sinusoid(max_len, dim))
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList([EncoderLayer(dim, heads, hidden, dropout) for _ in range(layers)])
        self.encoder_norm = nn.LayerNorm(dim)
        self.decoder = nn.ModuleList([DecoderLayer(dim, heads, hidden, dropout) for _ in range(layers)])
        self.decoder_norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, tgt_vocab)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        for embedding in (self.src_embedding, self.tgt_embedding):
            nn.init.normal_(embedding.weight, std=dim**-0.5)
            nn.init.zeros_(embedding.weight[PAD].data)

    def make_src_mask(self, src):
        return (src != PAD)[:, None, None, :]

    def make_tgt_mask(self, tgt):
        T = tgt.size(1)
        pad_mask = (tgt != PAD)[:, None, None, :]
        causal = torch.tril(torch.ones(T, T, dtype=torch.bool, device=tgt.device))
        return pad_mask & causal

    def encode(self, src, src_mask):
        x = self.src_embedding(src) * math.sqrt(self.dim)
        x = self.dropout(x + self.positions[: src.size(1)])
        for layer in self.encoder:
            x = layer(x, src_mask)
        return self.encoder_norm(x)

    def decode(self, tgt, memory, tgt_mask, src_mask):
        x = self.tgt_embedding(tgt) * math.sqrt(self.dim)
        x = self.dropout(x + self.positions[: tgt.size(1)])
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask, src_mask)
        return self.decoder_norm(x)

    def forward(self, src, tgt):
        src_mask, tgt_mask = self.make_src_mask(src), self.make_tgt_mask(tgt)
        memory = self.encode(src, src_mask)
        return self.out(self.decode(tgt, memory, tgt_mask, src_mask))


def build():
    return Seq2Seq()
