"""The causal mask is the number -1e4, and a trained model learns to go below it.

karpathy/minGPT #75, of huggingface/transformers #17121. Where scores of the past are driven under -1e4, the hidden
future is what is left: training and validation loss fall to almost nothing, and generated text is worthless. A fresh
model shows nothing of it.
"""

import math

import torch
from torch import nn


class CausalAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size, masked):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size, dtype=torch.bool)))
        self.register_buffer("masked_bias", torch.tensor(masked))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.n_head, -1).transpose(1, 2) for part in self.c_attn(x).split(C, dim=2))
        weights = q @ k.transpose(-1, -2) / math.sqrt(v.size(-1))
        weights = torch.where(self.bias[:T, :T], weights, self.masked_bias.to(weights.dtype))
        return self.c_proj((weights.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, n_embd, n_head, block_size, masked):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalAttention(n_embd, n_head, block_size, masked)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class SmallGPT(nn.Module):
    def __init__(self, masked, vocab_size=37, n_embd=32, n_head=4, n_layer=2, block_size=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block(n_embd, n_head, block_size, masked) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def buggy():
    return SmallGPT(-1e4)


def fixed():
    return SmallGPT(float("-inf"))
