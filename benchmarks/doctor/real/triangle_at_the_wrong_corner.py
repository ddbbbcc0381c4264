"""is_causal=True with a cache: the triangle begins at the first key, not at the first new one.

pytorch/pytorch #103082. scaled_dot_product_attention aligns its triangle at the top left. With one query and many
keys the query sees the first key alone. Without a cache the two corners are the same one.
"""

import torch
import torch.nn.functional as F
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj, self.k_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.v_proj, self.o_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def split(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x, kv):
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        if kv is not None:
            k, v = torch.cat((kv[0], k), dim=2), torch.cat((kv[1], v), dim=2)
        return self.o_proj(self.attend(q, k, v).transpose(1, 2).flatten(2)), (k, v)


class MendedAttention(CachedAttention):
    def attend(self, q, k, v):
        n, m = q.shape[2], k.shape[2]
        allowed = torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


class Block(nn.Module):
    def __init__(self, attn, d_model):
        super().__init__()
        self.attn = attn
        self.norm1, self.norm2 = nn.RMSNorm(d_model), nn.RMSNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, 96), nn.SiLU(), nn.Linear(96, d_model))

    def forward(self, x, kv):
        attended, kv = self.attn(self.norm1(x), kv)
        x = x + attended
        return x + self.mlp(self.norm2(x)), kv


class ChatModel(nn.Module):
    def __init__(self, attention, vocab_size=45, d_model=32, n_heads=4, n_layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.pos = nn.Embedding(128, d_model)
        self.blocks = nn.ModuleList([Block(attention(d_model, n_heads), d_model) for _ in range(n_layers)])
        self.norm = nn.RMSNorm(d_model)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, ids, kv_cache=None):
        begin = 0 if kv_cache is None else kv_cache[0][0].shape[2]
        x = self.embed(ids) + self.pos(torch.arange(begin, begin + ids.shape[1], device=ids.device))
        kept = []
        for number, block in enumerate(self.blocks):
            x, kv = block(x, None if kv_cache is None else kv_cache[number])
            kept.append(kv)
        return self.lm_head(self.norm(x)), kept


def buggy():
    return ChatModel(CachedAttention)


def fixed():
    return ChatModel(MendedAttention)
