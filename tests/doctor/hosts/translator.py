"""An encoder-decoder in the style of the tutorials: post-norm, padding from the ids, positions from sines."""

import math

import torch
from torch import nn

V, D, H, PAD = 47, 24, 3, 0


class MultiHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))

    def forward(self, query, memory, mask):
        B = query.size(0)
        q = self.q(query).view(B, -1, H, D // H).transpose(1, 2)
        k = self.k(memory).view(B, -1, H, D // H).transpose(1, 2)
        v = self.v(memory).view(B, -1, H, D // H).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(D // H)
        scores = scores.masked_fill(mask == 0, -1e9)
        y = torch.matmul(torch.softmax(scores, dim=-1), v)
        return self.o(y.transpose(1, 2).contiguous().view(B, -1, D))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.ff = MultiHead(), FeedForward()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x, src_mask):
        x = self.n1(x + self.attention(x, x, src_mask))
        return self.n2(x + self.ff(x))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.cross, self.ff = MultiHead(), MultiHead(), FeedForward()
        self.n1, self.n2, self.n3 = nn.LayerNorm(D), nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x, memory, tgt_mask, src_mask):
        x = self.n1(x + self.attention(x, x, tgt_mask))
        x = self.n2(x + self.cross(x, memory, src_mask))
        return self.n3(x + self.ff(x))


def sines(n):
    position, step = torch.arange(n).unsqueeze(1), torch.exp(torch.arange(0, D, 2) * -(math.log(10000.0) / D))
    table = torch.zeros(1, n, D)
    table[0, :, 0::2], table[0, :, 1::2] = torch.sin(position * step), torch.cos(position * step)
    return table


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.src_embed, self.tgt_embed = nn.Embedding(V, D), nn.Embedding(V, D)
        self.register_buffer("pe", sines(64))
        self.encoder = nn.ModuleList([EncoderLayer() for _ in range(2)])
        self.decoder = nn.ModuleList([DecoderLayer() for _ in range(2)])
        self.generator = nn.Linear(D, V)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src, tgt):
        src_mask = (src != PAD).unsqueeze(1).unsqueeze(2)
        T = tgt.size(1)
        tgt_mask = (tgt != PAD).unsqueeze(1).unsqueeze(2) & torch.tril(torch.ones(T, T)).bool()
        x = self.src_embed(src) * math.sqrt(D) + self.pe[:, : src.size(1)]
        for layer in self.encoder:
            x = layer(x, src_mask)
        y = self.tgt_embed(tgt) * math.sqrt(D) + self.pe[:, :T]
        for layer in self.decoder:
            y = layer(y, x, tgt_mask, src_mask)
        return self.generator(y)


def build():
    torch.manual_seed(0)
    return Transformer()
