"""Planted faults: what is changed in which host, which fault that is, and where it sits."""

from typing import NamedTuple

from clearhead.doctor.spec import Level


class Mutant(NamedTuple):
    """One fault. `module`: what the guilty module's path contains; none where a fault has no single place."""

    host: str
    id: str
    module: str | None
    changes: tuple[tuple[str, str], ...]
    level: Level = "quick"


def of(host: str, id: str, module: str | None, old: str, new: str, *, level: Level = "quick") -> Mutant:
    """A mutant with one change."""
    return Mutant(host, id, module, ((old, new),), level)


MASKING = '        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))\n'
SOFTMAX = "        att = F.softmax(att, dim=-1)\n"
TGT_MASK = "(tgt != PAD).unsqueeze(1).unsqueeze(2) & torch.tril(torch.ones(T, T)).bool()"
SHIFT = "loss = F.cross_entropy(logits.view(-1, V), targets.view(-1), ignore_index=-100)"

GPT = [
    of("gpt", "M01", "blocks.0.attn", MASKING, ""),
    of(
        "gpt",
        "M03",
        "blocks.1.attn",
        "self.ln_f = nn.LayerNorm(D)\n",
        "self.ln_f = nn.LayerNorm(D)\n        self.blocks[1].attn.mask.fill_(1)\n",
    ),
    of("gpt", "M04", "blocks.0.attn", "torch.tril(torch.ones(BLOCK, BLOCK))", "torch.triu(torch.ones(BLOCK, BLOCK))"),
    of("gpt", "M05", "blocks.0.attn", ":T, :T] == 0", ":T, :T] == 1"),
    of(
        "gpt", "M06", "blocks.0.attn", "torch.tril(torch.ones(BLOCK, BLOCK))", "torch.tril(torch.ones(BLOCK, BLOCK), 1)"
    ),
    of("gpt", "M08", "attn", 'float("-inf")', "-1e4"),
    of("gpt", "M08", "attn", 'float("-inf")', "-30"),
    Mutant(
        "gpt",
        "M10",
        "blocks.0.attn",
        ((MASKING, ""), (SOFTMAX, SOFTMAX + "        att = att * self.mask[:, :, :T, :T]\n")),
    ),
    of("gpt", "M20", "blocks.0.attn", MASKING, "        att = att + self.mask[:, :, :T, :T]\n"),
    of("gpt", "A03", "blocks.0.attn", "F.softmax(att, dim=-1)", "F.softmax(att, dim=-2)"),
    of("gpt", "A04", "attn", "q = q.view(B, T, H, C // H).transpose(1, 2)", "q = q.reshape(B, H, T, C // H)"),
    of("gpt", "A05", "attn", "y.transpose(1, 2).contiguous().view(B, T, C)", "y.contiguous().view(B, T, C)"),
    of("gpt", "A08", "mlp", "x = self.fc2(x)\n", "x = F.dropout(self.fc2(x), 0.2)\n"),
    of("gpt", "N01", "ln1", "self.ln1 = nn.LayerNorm(D)", "self.ln1 = TimeNorm()"),
    of("gpt", "N04", "blocks", "x = x + self.attn(self.ln1(x))", "x = self.attn(self.ln1(x))"),
    of("gpt", "N04", "blocks", "return x + self.mlp(self.ln2(x))", "return self.mlp(self.ln2(x))"),
    of("gpt", "F01", "mlp", "F.gelu(self.fc1(x))", "self.fc1(x)"),
    of("gpt", "M19", "mlp", "x = self.fc2(x)\n", "x = self.fc2(x)\n        x = x + x.mean(1, keepdim=True)\n"),
    of("gpt", "P01", None, "self.tok(idx) + self.pos(torch.arange(T))", "self.tok(idx)"),
    of("gpt", "I02", "blocks", "nn.ModuleList([Block() for _ in range(LAYERS)])", "nn.ModuleList([Block()] * LAYERS)"),
    of("gpt", "I05", None, "nn.ModuleList([Block() for _ in range(LAYERS)])", "[Block() for _ in range(LAYERS)]"),
    of("gpt", "I06", "attn", "return self.proj(y)", "return self.proj(y.detach())"),
    of(
        "gpt",
        "E01",
        "head",
        "self.head.weight = self.tok.weight",
        "self.head.weight = nn.Parameter(self.tok.weight.clone())",
    ),
    of("gpt", "E04", None, "nn.init.normal_(p, std=0.02)", "nn.init.normal_(p, std=1.0)"),
    of("gpt", "N08", "blocks", "self.ln2 = nn.LayerNorm(D)", "self.ln2 = self.ln1"),
    of("gpt", "D02", None, SHIFT, "loss = F.cross_entropy(logits[:, :-2].reshape(-1, V), targets[:, 2:].reshape(-1))"),
    of("gpt", "D03", None, SHIFT, "loss = F.cross_entropy(logits.view(-1, V)[:-1], targets.view(-1)[1:])"),
    of(
        "gpt",
        "L01",
        None,
        SHIFT,
        SHIFT.replace("ignore_index=-100)", "ignore_index=-100, reduction='sum') / targets.numel()"),
    ),
    of("gpt", "L03", None, SHIFT, SHIFT.replace("logits.view(-1, V)", "logits.view(-1, V).softmax(-1)")),
    of("gpt", "L04", None, SHIFT, SHIFT.replace("cross_entropy", "nll_loss")),
    of("gpt", "L10", None, SHIFT, SHIFT.replace("ignore_index=-100", "reduction='sum'")),
    of(
        "gpt",
        "T09",
        None,
        "        for block in self.blocks:\n",
        "        x = x + 0.1 * torch.randn_like(x)\n        for block in self.blocks:\n",
    ),
    of("gpt", "M14", "attn", "self.mask[:, :, :T, :T] == 0", "self.mask[:, :, :T, :T] < 2"),
]

LLAMA = [
    of("llama", "M01", "layers.0.attention", "attn_mask=mask", "attn_mask=None"),
    of("llama", "M06", "layers.0.attention", ".tril(L - T)", ".tril(L - T + 1)"),
    of("llama", "M05", "layers.0.attention", "attn_mask=mask", "attn_mask=~mask"),
    of("llama", "M02", "layers.0.attention", "attn_mask=mask", "attn_mask=None if self.training else mask"),
    of("llama", "A08", "attention", "attn_mask=mask", "attn_mask=mask, dropout_p=0.1"),
    of("llama", "A05", "attention", "y.transpose(1, 2).reshape(B, T, -1)", "y.reshape(B, T, -1)"),
    of("llama", "N01", "norm", "x.pow(2).mean(-1, keepdim=True)", "x.pow(2).mean(1, keepdim=True)"),
    of("llama", "N04", "layers", "x = x + y\n", "x = y\n"),
    of("llama", "P01", "attention", "        q = rotate(q, cos, sin)\n        k = rotate(k, cos, sin)\n", ""),
    of("llama", "P06", "attention", "        k = rotate(k, cos, sin)\n", ""),
    of(
        "llama",
        "P05",
        "attention",
        "turned = torch.cat((turned, turned), dim=-1)",
        "turned = turned.repeat_interleave(2, dim=-1)",
    ),
    of("llama", "K01", None, "torch.arange(start, start + T)", "torch.arange(T)"),
    of(
        "llama",
        "K02",
        None,
        "        now = (k, v)\n",
        "        now = (k[:, :, -T:], v[:, :, -T:])\n",
    ),
    of("llama", "K04", None, ".tril(L - T)", ".tril(0 if past is None else L - 1)"),
    of(
        "llama", "I02", "layers", "nn.ModuleList([Layer() for _ in range(LAYERS)])", "nn.ModuleList([Layer()] * LAYERS)"
    ),
    of(
        "llama",
        "M19",
        "ffn",
        "return self.down(F.silu(self.gate(x)) * self.up(x))",
        "return self.down(F.silu(self.gate(x)) * self.up(x).roll(-1, 1))",
    ),
]

TRANSLATOR = [
    of("translator", "M01", "decoder.0.attention", TGT_MASK, "(tgt != PAD).unsqueeze(1).unsqueeze(2)"),
    of(
        "translator",
        "M06",
        "decoder.0.attention",
        "torch.tril(torch.ones(T, T)).bool()",
        "torch.tril(torch.ones(T, T), 1).bool()",
    ),
    of("translator", "S01", None, "y = layer(y, x, tgt_mask, src_mask)", "y = layer(y, x, tgt_mask, src_mask | True)"),
    of(
        "translator",
        "S02",
        None,
        "x = self.n2(x + self.cross(x, memory, src_mask))",
        "x = self.n2(x + self.cross(x, x, tgt_mask))",
    ),
    of(
        "translator",
        "S03",
        "encoder",
        "            x = layer(x, src_mask)\n",
        "            x = layer(x, src_mask & torch.tril(torch.ones(src.size(1), src.size(1))).bool())\n",
    ),
    of(
        "translator",
        "S07",
        None,
        "self.src_embed(src) * math.sqrt(D) + self.pe[:, : src.size(1)]",
        "self.src_embed(src) * math.sqrt(D)",
    ),
    of(
        "translator",
        "A04",
        "attention",
        "k = self.k(memory).view(B, -1, H, D // H).transpose(1, 2)",
        "k = self.k(memory).view(B, H, -1, D // H)",
    ),
    of(
        "translator",
        "A05",
        "attention",
        "y.transpose(1, 2).contiguous().view(B, -1, D)",
        "y.contiguous().view(B, -1, D)",
    ),
    of(
        "translator",
        "N04",
        "decoder",
        "x = self.n2(x + self.cross(x, memory, src_mask))",
        "x = self.n2(self.cross(x, memory, src_mask))",
    ),
    of("translator", "F01", "ff", "self.b(torch.relu(self.a(x)))", "self.b(self.a(x))"),
    of("translator", "M08", None, "-1e9", "-1e3"),
    of(
        "translator",
        "P02",
        None,
        "y = self.tgt_embed(tgt) * math.sqrt(D) + self.pe[:, :T]",
        "y = self.tgt_embed(tgt) * math.sqrt(D) + self.pe[0, : tgt.size(0)].unsqueeze(1)",
    ),
]


CACHED_TRANSLATOR = [
    of("cached_translator", "K01", None, "begin = 0 if past is None else past[0][0].shape[2]", "begin = 0"),
    of(
        "cached_translator",
        "K02",
        "decoder.1",
        "None if past is None else past[number]",
        "None if past is None or number else past[number]",
    ),
    of("cached_translator", "K04", None, "tril(S - T)", "tril(S - T if T == 1 else 0)"),
]

TIME_FIRST = [
    of("time_first", "M01", "encoder.layers.0.self_attn", "self.encoder(x, mask)", "self.encoder(x)"),
    of(
        "time_first",
        "M04",
        "encoder.layers.0.self_attn",
        "mask = nn.Transformer.generate_square_subsequent_mask(len(src))",
        "mask = torch.tril(torch.ones(len(src), len(src)), -1).bool()",
    ),
    of("time_first", "P01", None, "return x + self.pe[: x.size(0)]", "return x"),
]

BERT = [
    of("bert", "M11", None, "key_padding_mask=padding", "key_padding_mask=None"),
    of("bert", "M12", None, "attention_mask == 0", "attention_mask == 1"),
    of("bert", "P01", None, "self.words(input_ids) + self.places.weight[: input_ids.size(1)]", "self.words(input_ids)"),
    of(
        "bert",
        "S03",
        None,
        "need_weights=False",
        "need_weights=False, attn_mask=torch.triu(torch.ones(x.size(1), x.size(1)), 1).bool()",
    ),
    of("bert", "A10", None, "nn.MultiheadAttention(D, 3, batch_first=True)", "nn.MultiheadAttention(D, 3)"),
    of("bert", "N01", "norm", "self.norm = nn.LayerNorm(D)", "self.norm = TimeNorm()"),
    of("bert", "F01", "layers.0", "F.gelu(self.up(x))", "self.up(x)"),
    of("bert", "N04", "layers", "self.norm1(x + y)", "self.norm1(y)"),
    of("bert", "I06", None, "x = self.norm(x)\n", "x = self.norm(x).detach()\n"),
    of("bert", "A12", None, "x = self.norm1(x + y)", "x = self.norm1(x + 0 * y)"),
]

MUTANTS = [*GPT, *LLAMA, *TRANSLATOR, *CACHED_TRANSLATOR, *TIME_FIRST, *BERT]
