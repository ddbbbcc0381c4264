"""A sparse decoder: each token goes to its two best experts. Loss inside; labels are the ids themselves."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class MoeOutput:
    logits: torch.Tensor
    loss: torch.Tensor | None = None
    aux_loss: torch.Tensor | None = None


class Attention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.o_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.qkv(x).reshape(B, T, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.size(-1))
        causal = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        scores = torch.where(causal, scores, torch.finfo(scores.dtype).min)
        out = scores.softmax(dim=-1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(B, T, C))


class Expert(nn.Module):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.up = nn.Linear(hidden_size, intermediate_size)
        self.down = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class SparseMoe(nn.Module):
    def __init__(self, hidden_size, intermediate_size, num_experts, top_k):
        super().__init__()
        self.num_experts, self.top_k = num_experts, top_k
        self.router = nn.Linear(hidden_size, num_experts, bias=False)
        self.experts = nn.ModuleList([Expert(hidden_size, intermediate_size) for _ in range(num_experts)])

    def forward(self, x):
        router_logits = self.router(x)  # (B, T, E)
        probs = router_logits.softmax(dim=-1)
        weights, chosen = probs.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        gate = torch.zeros_like(probs).scatter(-1, chosen, weights)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            out = out + gate[..., e : e + 1] * expert(x)
        load = (gate > 0).float().mean(dim=(0, 1))
        aux = self.num_experts * (load * probs.mean(dim=(0, 1))).sum() / self.top_k
        return out, aux


class Layer(nn.Module):
    def __init__(self, hidden_size, num_heads, intermediate_size, num_experts, top_k):
        super().__init__()
        self.input_norm = nn.LayerNorm(hidden_size)
        self.attention = Attention(hidden_size, num_heads)
        self.post_norm = nn.LayerNorm(hidden_size)
        self.moe = SparseMoe(hidden_size, intermediate_size, num_experts, top_k)

    def forward(self, x):
        x = x + self.attention(self.input_norm(x))
        y, aux = self.moe(self.post_norm(x))
        return x + y, aux


class MoeForCausalLM(nn.Module):
    def __init__(self, vocab_size=47, hidden_size=32, num_heads=4, num_layers=2, max_positions=40, aux_weight=0.01):
        super().__init__()
        self.aux_weight = aux_weight
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.embed_positions = nn.Embedding(max_positions, hidden_size)
        self.layers = nn.ModuleList(
            [Layer(hidden_size, num_heads, 64, num_experts=4, top_k=2) for _ in range(num_layers)]
        )
        self.norm = nn.LayerNorm(hidden_size)
        self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                scale = (2 * num_layers) ** -0.5 if name.endswith(("o_proj.weight", "down.weight")) else 1.0
                nn.init.normal_(p, std=0.02 * scale)

    def forward(self, input_ids, labels=None):
        """labels: usually input_ids again (they are shifted in here), -100 where nothing is to be learnt."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.embed_tokens(input_ids) + self.embed_positions(positions)
        aux_loss = x.new_zeros(())
        for layer in self.layers:
            x, aux = layer(x)
            aux_loss = aux_loss + aux
        logits = self.lm_head(self.norm(x))
        loss = None
        if labels is not None:
            shift_logits = logits[:, :-1].flatten(0, 1)
            shift_labels = labels[:, 1:].flatten()
            loss = F.cross_entropy(shift_logits, shift_labels, ignore_index=-100)
            loss = loss + self.aux_weight * aux_loss
        return MoeOutput(logits, loss, aux_loss)


def build():
    return MoeForCausalLM()
