"""An encoder-decoder that decodes with a cache: its own tokens grow in it, the source is projected once."""

import torch
from torch import nn
from torch.nn import functional as F

V, D, H, LAYERS, MAX_LENGTH = 47, 24, 3, 2, 64


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)

    def project(self, x):
        k, v = self.kv(x).chunk(2, dim=-1)
        return self.heads(k), self.heads(v)

    def heads(self, x):
        return x.unflatten(-1, (H, -1)).transpose(1, 2)

    def forward(self, x, keys, values, mask=None):
        y = F.scaled_dot_product_attention(self.heads(self.q(x)), keys, values, attn_mask=mask)
        return self.o(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), FeedForward()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x):
        seen = self.n1(x)
        x = x + self.attention(seen, *self.attention.project(seen))
        return x + self.mlp(self.n2(x))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.cross, self.mlp = Attention(), Attention(), FeedForward()
        self.n1, self.n2, self.n3 = nn.LayerNorm(D), nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x, memory, past):
        seen = self.n1(x)
        k, v = self.attention.project(seen)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        T, S = x.shape[1], k.shape[2]
        mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        x = x + self.attention(seen, k, v, mask)
        source = self.cross.project(memory) if past is None else past[2:]
        x = x + self.cross(self.n2(x), *source)
        return x + self.mlp(self.n3(x)), (k, v, *source)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.src_tokens, self.tgt_tokens = nn.Embedding(V, D), nn.Embedding(V, D)
        self.src_places, self.tgt_places = nn.Embedding(MAX_LENGTH, D), nn.Embedding(MAX_LENGTH, D)
        self.encoder = nn.ModuleList([EncoderLayer() for _ in range(LAYERS)])
        self.decoder = nn.ModuleList([DecoderLayer() for _ in range(LAYERS)])
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.05)

    def forward(self, src, tgt, past=None):
        x = self.src_tokens(src) + self.src_places(torch.arange(src.shape[1]))
        for layer in self.encoder:
            x = layer(x)
        memory = self.encoder_norm(x)
        begin = 0 if past is None else past[0][0].shape[2]
        y = self.tgt_tokens(tgt) + self.tgt_places(torch.arange(begin, begin + tgt.shape[1]))
        present = []
        for number, layer in enumerate(self.decoder):
            y, kept = layer(y, memory, None if past is None else past[number])
            present.append(kept)
        return self.head(self.decoder_norm(y)), present


def build():
    torch.manual_seed(0)
    return Translator()
