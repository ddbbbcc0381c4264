"""The original Transformer, post-norm; heads are stacked along the batch; one vocabulary for both languages."""

import copy
import math

import torch
from torch import nn


def clones(module, n):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])


class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features))
        self.shift = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = ((x - mean) ** 2).mean(-1, keepdim=True)
        return self.gain * (x - mean) / torch.sqrt(var + self.eps) + self.shift


class StackedHeads(nn.Module):
    """Multi-head attention that cuts the features into h slices and stacks them along the batch axis."""

    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.w_qs = nn.Linear(d_model, d_model, bias=False)
        self.w_ks = nn.Linear(d_model, d_model, bias=False)
        self.w_vs = nn.Linear(d_model, d_model, bias=False)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, q, kv, blocked):
        """blocked: (B, T_q, T_k), True where nothing may be read."""
        q_ = torch.cat(self.w_qs(q).chunk(self.h, dim=-1), dim=0)  # (h * B, T_q, d_k)
        k_ = torch.cat(self.w_ks(kv).chunk(self.h, dim=-1), dim=0)
        v_ = torch.cat(self.w_vs(kv).chunk(self.h, dim=-1), dim=0)
        scores = torch.bmm(q_, k_.transpose(1, 2)) / math.sqrt(k_.size(-1))
        scores = scores.masked_fill(blocked.repeat(self.h, 1, 1), -1e30)
        context = torch.bmm(torch.softmax(scores, dim=-1), v_)
        return self.out(torch.cat(context.chunk(self.h, dim=0), dim=-1))


class SublayerConnection(nn.Module):
    """Dropout, residual, then the norm."""

    def __init__(self, size, dropout):
        super().__init__()
        self.norm = LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, h, d_ff, dropout):
        super().__init__()
        self.self_attn = StackedHeads(d_model, h)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.sublayer = clones(SublayerConnection(d_model, dropout), 2)

    def forward(self, x, src_blocked):
        x = self.sublayer[0](x, lambda y: self.self_attn(y, y, src_blocked))
        return self.sublayer[1](x, self.ff)


class DecoderLayer(nn.Module):
    def __init__(self, d_model, h, d_ff, dropout):
        super().__init__()
        self.self_attn = StackedHeads(d_model, h)
        self.src_attn = StackedHeads(d_model, h)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.sublayer = clones(SublayerConnection(d_model, dropout), 3)

    def forward(self, x, memory, tgt_blocked, src_blocked):
        x = self.sublayer[0](x, lambda y: self.self_attn(y, y, tgt_blocked))
        x = self.sublayer[1](x, lambda y: self.src_attn(y, memory, src_blocked))
        return self.sublayer[2](x, self.ff)


class Transformer(nn.Module):
    def __init__(self, vocab=39, d_model=32, h=4, d_ff=64, n=2, dropout=0.1, max_len=64, pad=0):
        super().__init__()
        self.pad, self.d_model = pad, d_model
        self.embed = nn.Embedding(vocab, d_model)
        self.position = nn.Embedding(max_len, d_model)
        self.drop = nn.Dropout(dropout)
        self.encoder = clones(EncoderLayer(d_model, h, d_ff, dropout), n)
        self.decoder = clones(DecoderLayer(d_model, h, d_ff, dropout), n)
        self.generator = nn.Linear(d_model, vocab, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        nn.init.normal_(self.embed.weight, std=d_model**-0.5)
        self.generator.weight = self.embed.weight  # shared, as in section 3.4 of the paper

    def embed_tokens(self, ids):
        where = torch.arange(ids.size(1), device=ids.device)
        return self.drop(self.embed(ids) * math.sqrt(self.d_model) + self.position(where))

    def forward(self, src, tgt, src_key_padding_mask=None):
        """src (B, S), tgt (B, T); src_key_padding_mask (B, S) is True on padding, found from the ids if not given."""
        if src_key_padding_mask is None:
            src_key_padding_mask = src == self.pad
        S, T = src.size(1), tgt.size(1)
        future = torch.ones(T, T, dtype=torch.bool, device=tgt.device).triu(1)
        enc_blocked = src_key_padding_mask[:, None, :].expand(-1, S, -1)
        dec_blocked = (tgt == self.pad)[:, None, :] | future
        src_blocked = src_key_padding_mask[:, None, :].expand(-1, T, -1)
        memory = self.embed_tokens(src)
        for layer in self.encoder:
            memory = layer(memory, enc_blocked)
        x = self.embed_tokens(tgt)
        for layer in self.decoder:
            x = layer(x, memory, dec_blocked, src_blocked)
        return self.generator(x)


def build():
    return Transformer()
