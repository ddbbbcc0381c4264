"""A decoder in time-first layout: ids (T, B) in, logits (T, B, V) out; attention by einsum."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head, self.d_head = n_head, d_model // n_head
        self.qkv_net = nn.Linear(d_model, 3 * d_model, bias=False)
        self.o_net = nn.Linear(d_model, d_model, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, h, attn_mask):
        qlen, bsz, _ = h.shape
        q, k, v = (x.view(qlen, bsz, self.n_head, self.d_head) for x in self.qkv_net(h).chunk(3, dim=-1))
        score = torch.einsum("ibnd,jbnd->ijbn", q, k) / self.d_head**0.5
        score = score.masked_fill(attn_mask[:, :, None, None], -float("inf"))
        prob = self.drop(torch.softmax(score, dim=1))
        vec = torch.einsum("ijbn,jbnd->ibnd", prob, v)
        return self.o_net(vec.reshape(qlen, bsz, -1))


class PositionwiseFF(nn.Module):
    def __init__(self, d_model, d_inner):
        super().__init__()
        self.fc1 = nn.Linear(d_model, d_inner)
        self.fc2 = nn.Linear(d_inner, d_model)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, n_head, d_inner):
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.attn = Attention(d_model, n_head)
        self.norm2 = nn.LayerNorm(d_model)
        self.ff = PositionwiseFF(d_model, d_inner)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, attn_mask):
        x = x + self.drop(self.attn(self.norm1(x), attn_mask))
        return x + self.drop(self.ff(self.norm2(x)))


class TimeFirstLM(nn.Module):
    """Expects ids as (seq_len, batch), like the old torchtext iterators give them."""

    def __init__(self, n_token=33, d_model=32, n_head=4, d_inner=64, n_layer=3, max_len=50):
        super().__init__()
        self.n_layer = n_layer
        self.word_emb = nn.Embedding(n_token, d_model)
        self.pos_emb = nn.Embedding(max_len, d_model)
        self.layers = nn.ModuleList([DecoderLayer(d_model, n_head, d_inner) for _ in range(n_layer)])
        self.norm = nn.LayerNorm(d_model)
        self.out = nn.Linear(d_model, n_token)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                deep = name.endswith(("o_net.weight", "fc2.weight"))
                nn.init.normal_(p, 0.0, 0.02 / (2 * n_layer) ** 0.5 if deep else 0.02)

    def forward(self, inp):
        seq_len, _ = inp.shape
        pos = torch.arange(seq_len, device=inp.device)
        h = self.word_emb(inp) + self.pos_emb(pos)[:, None, :]
        attn_mask = torch.triu(torch.ones(seq_len, seq_len, dtype=torch.bool, device=inp.device), diagonal=1)
        for layer in self.layers:
            h = layer(h, attn_mask)
        return self.out(self.norm(h))


def build():
    return TimeFirstLM()
