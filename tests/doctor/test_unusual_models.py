"""Healthy models of a make that a rule could take for a fault: each differs from a healthy host, and by design."""

from pathlib import Path
from typing import NamedTuple

import pytest
from doctor_helpers import made, write

from clearhead.doctor import check


class Unusual(NamedTuple):
    """`asked`: ids that a rule found here once."""

    about: str
    asked: tuple[str, ...]
    host: str
    changes: tuple[tuple[str, str], ...]


UNUSUAL = [
    Unusual(
        "an activation that works in place",
        ("F01",),
        "gpt",
        (("F.gelu(self.fc1(x))", "F.relu_(self.fc1(x))"),),
    ),
    Unusual(
        "a small embedding that is widened, and read by grouped keys before any norm",
        ("F01",),
        "llama",
        (
            (
                "        self.embed = nn.Embedding(V, D)\n",
                "        self.embed, self.wide = nn.Embedding(V, 8), nn.Linear(8, D)\n",
            ),
            ("self.embed(tokens)", "self.wide(self.embed(tokens))"),
            ("self.attention(self.attention_norm(x), past)", "self.attention(x, past)"),
            ("x = x + y\n", "x = self.attention_norm(x + y)\n"),
        ),
    ),
    Unusual(
        "rows that are shifted inside, and asked for their own tokens",
        ("M07", "D01", "D02"),
        "gpt",
        (
            (
                "        x = self.tok(idx) + self.pos(torch.arange(T))\n",
                "        x = F.pad(self.tok(idx)[:, :-1], (0, 0, 1, 0)) + self.pos(torch.arange(T))\n",
            ),
        ),
    ),
    Unusual(
        "buffers for eight rows and no more",
        ("A10", "P02", "M01"),
        "gpt",
        (
            (
                "        self.head.weight = self.tok.weight\n",
                "        self.head.weight = self.tok.weight\n"
                "        self.register_buffer('held', torch.zeros(8, BLOCK, D))\n",
            ),
            (
                "        for block in self.blocks:\n",
                "        self.held[: len(x), :T] = x.detach()\n        for block in self.blocks:\n",
            ),
        ),
    ),
    Unusual(
        "positions as a learned bias on the scores of every two places",
        ("P05", "P06", "P01"),
        "gpt",
        (
            ("        self.pos = nn.Embedding(BLOCK, D)\n", ""),
            (" + self.pos(torch.arange(T))", ""),
            (
                "        self.proj = nn.Linear(D, D)\n",
                "        self.proj, self.pos = nn.Linear(D, D), nn.Parameter(torch.zeros(H, BLOCK, BLOCK))\n",
            ),
            (
                "        att = att.masked_fill(",
                "        att = att + self.pos[:, :T, :T]\n        att = att.masked_fill(",
            ),
        ),
    ),
    Unusual(
        "scores that grow with the number of what is seen",
        ("P05", "P06"),
        "llama",
        (
            (
                "        q = rotate(q, cos, sin)\n",
                "        q = rotate(q, cos, sin) * torch.arange(start + 2, start + T + 2)[:, None].log()\n",
            ),
        ),
    ),
    Unusual(
        "a first layer without positions",
        ("P01",),
        "llama",
        (
            (
                "        q = rotate(q, cos, sin)\n        k = rotate(k, cos, sin)\n",
                "        if self.turns:\n            q, k = rotate(q, cos, sin), rotate(k, cos, sin)\n",
            ),
            (
                "        self.wq = nn.Linear(D, H * K, bias=False)\n",
                "        self.wq, self.turns = nn.Linear(D, H * K, bias=False), True\n",
            ),
            (
                "        self.norm = RMSNorm()\n",
                "        self.norm, self.layers[0].attention.turns = RMSNorm(), False\n",
            ),
        ),
    ),
    Unusual(
        "a generate() that never writes some of the tokens",
        ("K11", "K08"),
        "llama",
        (
            (
                "        return self.out(self.norm(x)), new\n",
                "        return self.out(self.norm(x)), new\n\n"
                "    def generate(self, ids, max_new_tokens):\n"
                "        for _ in range(max_new_tokens):\n"
                "            logits = self(ids)[0][:, -1].index_fill(1, torch.arange(V // 2), -1e9)\n"
                "            ids = torch.cat((ids, logits.argmax(-1, keepdim=True)), dim=1)\n"
                "        return ids\n",
            ),
        ),
    ),
    Unusual(
        "a norm over groups of channels and all tokens, where every token sees all",
        ("N01",),
        "bert",
        (
            (
                "        self.norm = nn.LayerNorm(D)\n",
                "        self.norm, self.groups = nn.LayerNorm(D), nn.GroupNorm(3, D)\n",
            ),
            ("        x = self.norm(x)\n", "        x = self.groups(self.norm(x).mT).mT\n"),
        ),
    ),
    Unusual(
        "a second head, whose output stands beside the logits",
        ("A13",),
        "bert",
        (
            (
                "        self.head = nn.Linear(D, V)\n",
                "        self.head, self.kinds = nn.Linear(D, V), nn.Linear(D, 2)\n",
            ),
            ('return {"logits": self.head(x)}', 'return {"kinds": self.kinds(x[:, 0]), "logits": self.head(x)}'),
        ),
    ),
    Unusual(
        "waves so slow that their cosines stand still, in tables of their own",
        ("P09",),
        "llama",
        (
            ("torch.arange(0, K, 2).float() / K))", "torch.arange(0, K, 2).float() / K)) / 50"),
            (
                "        self.norm = RMSNorm()\n",
                "        self.norm = RMSNorm()\n        cos, sin = angles(torch.arange(16))\n"
                "        self.register_buffer('cos', cos)\n        self.register_buffer('sin', sin)\n",
            ),
        ),
    ),
    Unusual(
        "two streams that are mixed by a matrix around every sublayer",
        ("N04", "N05"),
        "gpt",
        (
            (
                "class Block(nn.Module):\n",
                "class Mixed(nn.Module):\n"
                "    def __init__(self, branch):\n"
                "        super().__init__()\n"
                "        self.norm, self.branch = nn.LayerNorm(D), branch\n"
                "        self.mix = nn.Parameter(torch.tensor([[1.0, 0.1], [0.1, 1.0]]))\n\n"
                "    def forward(self, x):\n"
                "        streams = torch.einsum('nm,mbtd->nbtd', self.mix, x)\n"
                "        return streams + self.branch(self.norm(streams[0]))\n\n\n"
                "class Block(nn.Module):\n",
            ),
            (
                "        self.ln1 = nn.LayerNorm(D)\n        self.attn = CausalSelfAttention()\n",
                "        self.attn = Mixed(CausalSelfAttention())\n",
            ),
            ("        self.ln2 = nn.LayerNorm(D)\n        self.mlp = MLP()\n", "        self.mlp = Mixed(MLP())\n"),
            (
                "        x = x + self.attn(self.ln1(x))\n        return x + self.mlp(self.ln2(x))\n",
                "        return self.mlp(self.attn(x))\n",
            ),
            (
                "        for block in self.blocks:\n            x = block(x)\n",
                "        x = torch.stack((x, x))\n        for block in self.blocks:\n            x = block(x)\n"
                "        x = x.sum(0)\n",
            ),
        ),
    ),
    Unusual(
        "an encoder that is called a language model, and whose layers are told not to be causal",
        ("M01",),
        "bert",
        (
            ("class BertForMaskedLM(", "class LocalLM("),
            ("return BertForMaskedLM()", "return LocalLM()"),
            ("        self.attention = nn.Multi", "        self.causal = False\n        self.attention = nn.Multi"),
        ),
    ),
    Unusual(
        "matrices that are divided by their length",
        ("N04",),
        "gpt",
        (
            (
                "        self.fc2 = nn.Linear(4 * D, D)\n",
                "        self.fc2 = nn.utils.parametrizations.weight_norm(nn.Linear(4 * D, D))\n",
            ),
        ),
    ),
    Unusual(
        "an encoder of a class that is causal only if it is told so",
        ("M01",),
        "bert",
        (
            (
                "class BertForMaskedLM(nn.Module):\n    def __init__(self):\n",
                "class Reader(nn.Module):\n    def __init__(self, causal=False):\n",
            ),
            ("return BertForMaskedLM()", "return Reader()"),
        ),
    ),
    Unusual(
        "scores of distances that are shifted by reading them with exchanged axes",
        ("A04", "A05"),
        "gpt",
        (
            (
                "        self.proj = nn.Linear(D, D)\n",
                "        self.proj, self.far = nn.Linear(D, D), nn.Parameter(torch.zeros(D // H, BLOCK + 16))\n",
            ),
            (
                "        att = att.masked_fill(",
                "        far = F.pad(q @ self.far[:, -T - 16 :], (1, 0)).view(B, H, -1, T)[:, :, 1:]\n"
                "        att = att + far.reshape(B, H, T, -1)[..., :T]\n"
                "        att = att.masked_fill(",
            ),
        ),
    ),
    Unusual(
        "a first attention, normalized by hand, in which the last token sees every third one",
        ("P01",),
        "gpt",
        (
            (
                "        self.ln_f = nn.LayerNorm(D)\n",
                "        self.ln_f = nn.LayerNorm(D)\n"
                "        far = torch.arange(BLOCK)[:, None] - torch.arange(BLOCK)\n"
                "        self.blocks[0].attn.mask *= far % 3 == 0\n",
            ),
            ("        att = F.softmax(att, dim=-1)\n", "        att = att.exp() / att.exp().sum(-1, keepdim=True)\n"),
        ),
    ),
    Unusual(
        "targets that are the input's own ids, and a text that speaks of the next token",
        ("D02", "D01"),
        "gpt",
        (
            (
                "    def forward(self, idx, targets=None):\n",
                "    def forward(self, idx, targets=None):\n"
                "        # targets: the same as idx, not already shifted; each position is trained on the next token\n",
            ),
            (
                "F.cross_entropy(logits.view(-1, V), targets.view(-1), ignore_index=-100)",
                "F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore_index=-100)",
            ),
        ),
    ),
    Unusual(
        "targets that the caller shifts, and a text that says so",
        ("D01", "D02"),
        "gpt",
        (
            (
                "    def forward(self, idx, targets=None):\n",
                "    def forward(self, idx, targets=None):\n        # targets are not shifted inside\n",
            ),
        ),
    ),
]


@pytest.mark.parametrize("unusual", UNUSUAL, ids=lambda one: one.about)
def test_what_is_meant_so_is_no_fault(unusual: Unusual, tmp_path: Path) -> None:
    report = check(made(write(tmp_path, unusual.host, *unusual.changes)), only=unusual.asked)
    assert report.verdict == "partial", str(report)
    assert not report.findings, str(report)
    looked = [one.status for one in report.checks if unusual.asked[0] in one.covers and one.status != "skip"]
    assert looked, str(report)
    assert {*looked} == {"pass"}, str(report)
