"""The translation tutorial's Transformer: a residual wrapper around every sublayer, label smoothing in the model."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LayerNormalization(nn.Module):
    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        var = x.var(dim=-1, unbiased=False, keepdim=True)
        return self.alpha * (x - mean) / torch.sqrt(var + self.eps) + self.bias


class MultiHead(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        self.h, self.d_k = h, d_model // h
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def heads(self, x):
        return x.view(x.shape[0], x.shape[1], self.h, self.d_k).transpose(1, 2)

    def forward(self, q, k, v, mask):
        q, k, v = self.heads(self.w_q(q)), self.heads(self.w_k(k)), self.heads(self.w_v(v))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(self.d_k)
        scores = scores.masked_fill(mask == 0, -1e9)
        x = scores.softmax(dim=-1) @ v
        return self.w_o(x.transpose(1, 2).contiguous().view(x.shape[0], -1, self.h * self.d_k))


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.linear_1 = nn.Linear(d_model, d_ff)
        self.linear_2 = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.linear_2(torch.relu(self.linear_1(x)))


class Residual(nn.Module):
    """x + dropout(sublayer(norm(x)))."""

    def __init__(self, d_model, dropout):
        super().__init__()
        self.norm = LayerNormalization(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class EncoderBlock(nn.Module):
    def __init__(self, d_model, h, d_ff, dropout):
        super().__init__()
        self.attention = MultiHead(d_model, h)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.residuals = nn.ModuleList([Residual(d_model, dropout) for _ in range(2)])

    def forward(self, x, src_mask):
        x = self.residuals[0](x, lambda y: self.attention(y, y, y, src_mask))
        return self.residuals[1](x, self.feed_forward)


class DecoderBlock(nn.Module):
    def __init__(self, d_model, h, d_ff, dropout):
        super().__init__()
        self.attention = MultiHead(d_model, h)
        self.cross_attention = MultiHead(d_model, h)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.residuals = nn.ModuleList([Residual(d_model, dropout) for _ in range(3)])

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.residuals[0](x, lambda z: self.attention(z, z, z, tgt_mask))
        x = self.residuals[1](x, lambda y: self.cross_attention(y, memory, memory, src_mask))
        return self.residuals[2](x, self.feed_forward)


class LabelSmoothing(nn.Module):
    def __init__(self, size, padding_idx, smoothing):
        super().__init__()
        self.size, self.padding_idx, self.smoothing = size, padding_idx, smoothing

    def forward(self, logits, target):
        logp = F.log_softmax(logits, dim=-1)
        hit = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        spread = -logp.mean(dim=-1)
        loss = (1 - self.smoothing) * hit + self.smoothing * spread
        real = target != self.padding_idx
        return loss[real].sum() / real.sum()


class TranslationModel(nn.Module):
    """src (B, S), tgt (B, T), padded with 0. With labels (B, T), the tokens after those of tgt: (logits, loss)."""

    def __init__(self, src_vocab=33, tgt_vocab=41, d_model=32, h=4, d_ff=64, n=2, dropout=0.1, max_len=60, pad=0):
        super().__init__()
        self.d_model, self.pad = d_model, pad
        self.src_embed = nn.Embedding(src_vocab, d_model)
        self.tgt_embed = nn.Embedding(tgt_vocab, d_model)
        self.src_pos = nn.Embedding(max_len, d_model)
        self.tgt_pos = nn.Embedding(max_len, d_model)
        self.encoder = nn.ModuleList([EncoderBlock(d_model, h, d_ff, dropout) for _ in range(n)])
        self.encoder_norm = LayerNormalization(d_model)
        self.decoder = nn.ModuleList([DecoderBlock(d_model, h, d_ff, dropout) for _ in range(n)])
        self.decoder_norm = LayerNormalization(d_model)
        self.projection = nn.Linear(d_model, tgt_vocab)
        self.criterion = LabelSmoothing(tgt_vocab, pad, 0.1)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src, tgt, labels=None):
        src_mask = (src != self.pad)[:, None, None, :]
        T = tgt.shape[1]
        causal = torch.tril(torch.ones(T, T, dtype=torch.bool, device=tgt.device))
        tgt_mask = (tgt != self.pad)[:, None, None, :] & causal
        x = self.src_embed(src) * math.sqrt(self.d_model) + self.src_pos(torch.arange(src.shape[1]))
        for block in self.encoder:
            x = block(x, src_mask)
        memory = self.encoder_norm(x)
        y = self.tgt_embed(tgt) * math.sqrt(self.d_model) + self.tgt_pos(torch.arange(T))
        for block in self.decoder:
            y = block(y, memory, src_mask, tgt_mask)
        logits = self.projection(self.decoder_norm(y))
        if labels is None:
            return logits
        return logits, self.criterion(logits, labels)


def build():
    return TranslationModel()
