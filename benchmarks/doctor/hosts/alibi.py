"""A decoder with linear biases (ALiBi) for positions and a short causal convolution before attention."""

import torch
from torch import nn
from torch.nn import functional as F


def alibi_slopes(n_heads):
    return torch.tensor([2.0 ** (-8.0 * (i + 1) / n_heads) for i in range(n_heads)])


class ShortConv(nn.Module):
    """Depthwise convolution over the last three tokens."""

    def __init__(self, dim, width=3):
        super().__init__()
        self.width = width
        self.conv = nn.Conv1d(dim, dim, width, groups=dim)

    def forward(self, x):
        x = F.pad(x.transpose(1, 2), (self.width - 1, 0))
        return self.conv(x).transpose(1, 2)


class AlibiAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.Wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)
        self.register_buffer("slopes", alibi_slopes(n_heads), persistent=False)

    def bias(self, T):
        pos = torch.arange(T, device=self.slopes.device)
        distance = pos[:, None] - pos[None, :]
        bias = -self.slopes[:, None, None] * distance.float()
        return bias.masked_fill(distance < 0, float("-inf"))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.Wqkv(x).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(T))
        return self.out_proj(y.transpose(1, 2).reshape(B, T, C))


class GatedMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.gate(x)) * self.up(x))


class AlibiBlock(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.norm_1 = nn.LayerNorm(dim)
        self.conv = ShortConv(dim)
        self.attn = AlibiAttention(dim, n_heads)
        self.norm_2 = nn.LayerNorm(dim)
        self.ffn = GatedMLP(dim, 2 * dim)

    def forward(self, x):
        h = self.norm_1(x)
        x = x + self.attn(h + self.conv(h))
        return x + self.ffn(self.norm_2(x))


class AlibiLM(nn.Module):
    """Decoder-only language model."""

    def __init__(self, vocab_size=31, dim=32, n_heads=4, n_layers=3):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, dim)
        self.blocks = nn.Sequential(*[AlibiBlock(dim, n_heads) for _ in range(n_layers)])
        self.norm_f = nn.LayerNorm(dim)
        self.reset_parameters(n_layers)

    def reset_parameters(self, n_layers):
        for name, p in self.named_parameters():
            if p.dim() == 2:
                branch_end = name.endswith(("out_proj.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (2 * n_layers) ** 0.5 if branch_end else 0.02)

    def forward(self, input_ids):
        x = self.wte(input_ids)
        x = self.blocks(x)
        x = self.norm_f(x)
        return F.linear(x, self.wte.weight)  # the embedding is the head as well


def build():
    return AlibiLM()
