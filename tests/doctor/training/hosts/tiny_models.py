import torch
import torch.nn as nn
import torch.nn.functional as F

V, T, D = 31, 12, 16


class Block(nn.Module):
    def __init__(self, causal=True, dropout=0.1):
        super().__init__()
        self.causal = causal
        self.norm1 = nn.LayerNorm(D)
        self.qkv = nn.Linear(D, 3 * D)
        self.out = nn.Linear(D, D)
        self.norm2 = nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (t.view(B, T, 2, D // 2).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        att = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.drop(self.out(att.transpose(1, 2).reshape(B, T, D)))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, causal=True, dropout=0.1, tied=True, layers=2):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.positions = nn.Embedding(64, D)
        self.blocks = nn.ModuleList([Block(causal, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, D, padding_idx=0)
        self.positions = nn.Embedding(64, D)
        self.transformer = nn.Transformer(D, 2, 1, 1, 2 * D, 0.1, batch_first=True, norm_first=False)
        self.head = nn.Linear(D, V)

    def forward(self, src, tgt):
        def embedded(ids):
            return self.embed(ids) + self.positions(torch.arange(ids.shape[1]))

        causal = torch.ones(tgt.shape[1], tgt.shape[1]).triu(1).bool()
        pads = src == 0
        x = self.transformer(embedded(src), embedded(tgt), tgt_mask=causal, src_key_padding_mask=pads,
                             memory_key_padding_mask=pads)  # fmt: skip
        return self.head(x)


def text(seed, rows=4, length=T + 1):
    return torch.randint(3, V, (rows, length), generator=torch.Generator().manual_seed(seed))
