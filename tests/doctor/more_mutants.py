"""Planted faults of attention's arithmetic, the residual stream, embeddings, fresh weights, caches and losses."""

from mutants import SHIFT, SOFTMAX, Mutant, of

MORE_GPT = [
    of("gpt", "A01", "blocks.0.attn", " / math.sqrt(k.size(-1))", ""),
    of("gpt", "A02", "blocks.0.attn", "/ math.sqrt(k.size(-1))", "/ math.sqrt(k.size(-1)) / C"),
    of("gpt", "A14", "blocks.0.attn", "q = q.view(", "q = k.transpose(1, 2).reshape(B, T, C).view("),
    Mutant("gpt", "A09", "blocks.0.attn", ((SOFTMAX, "        att = F.dropout(att, 0.2, self.training)\n" + SOFTMAX),)),
    of("gpt", "A13", "blocks.0.attn", "return self.proj(y)", "return y"),
    of("gpt", "N03", "ln_f", "self.head(self.ln_f(x))", "self.head(x)"),
    of("gpt", "N05", "blocks", "x = x + self.attn(self.ln1(x))", "x = self.ln1(x)\n        x = x + self.attn(x)"),
    of("gpt", "N10", "blocks", "x = x + self.attn(self.ln1(x))", "x = self.mlp.drop(x + self.attn(self.ln1(x)))"),
    Mutant("gpt", "P10", "pos", (("self.pos(torch.arange(T))", "self.pos(torch.arange(1, T + 1))"),
           ("        self.tok = ", "        self.block_size = BLOCK\n        self.tok = "))),
    of("gpt", "I01", "blocks", "        for p in self.parameters():\n            if p.dim() > 1:\n",
       "        for block in self.blocks:\n            block.load_state_dict(self.blocks[0].state_dict())\n"
       "        for p in self.head.parameters():\n            if p.dim() > 1:\n"),
    of("gpt", "I04", "blocks.0", "        self.head.weight = self.tok.weight",
       "        for p in [q for b in self.blocks for q in (*b.attn.parameters(), *b.mlp.parameters())]:\n"
       "            nn.init.zeros_(p)\n        self.head.weight = self.tok.weight"),
    of("gpt", "D01", None, "targets.view(-1), ignore_index=-100)", "idx.view(-1), ignore_index=-100)"),
    of("gpt", "L08", None, SHIFT, SHIFT.replace("targets.view(-1), ignore_index=-100",
                                                "targets.view(-1).clamp(min=0), ignore_index=0")),
    of("gpt", "L11", None, SHIFT, SHIFT + " + 50.0"),
    of("gpt", "E03", "tok", "x = self.tok(idx) +", "x = self.tok(idx) * 0.1 +"),
    of("gpt", "V01", "mlp", "x = block(x)", "x = block.train()(x)"),
]  # fmt: skip

MORE = [
    of("llama", "N06", "attention_norm", "torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)",
       "(x.pow(2).sum(-1, keepdim=True) / (D - 1) + 1e-6).rsqrt()"),
    of("llama", "N04", "layers", "return x + self.ffn(self.ffn_norm(x)), now",
       "return x - y + self.ffn(self.ffn_norm(x)), now"),
    of("llama", "F01", "ffn", "F.silu(self.gate(x)) * self.up(x)", "self.gate(x) + self.up(x)"),
    of("llama", "P06", "attention", "        k = rotate(k, cos, sin)\n",
       "        k, v = rotate(k, cos, sin), rotate(v, cos, sin)\n"),
    of("llama", "P08", "attention", "inverse[None, :]", "inverse[None, :]\n    turned = turned.bfloat16().float()"),
    of("translator", "S04", "decoder.0.cross", "x = self.n2(x + self.cross(x, memory, src_mask))",
       "x = self.n2(x + self.cross(x, memory, src_mask & torch.ones(x.size(1), memory.size(1)).tril().bool()))"),
    of("translator", "S06", None, "        y = self.tgt_embed(tgt)",
       "        x = self.src_embed(src)\n        y = self.tgt_embed(tgt)"),
    of("translator", "S06", "cross", "        y = self.tgt_embed(tgt)",
       "        x = x.mean(1, keepdim=True).expand_as(x)\n        y = self.tgt_embed(tgt)"),
    of("translator", "S09", None, "        src_mask = (src",
       "        src = src[:, : tgt.size(1)]\n        src_mask = (src"),
    of("translator", "M11", "encoder.0", "x = layer(x, src_mask)", "x = layer(x, src_mask | True)"),
    of("translator", "M12", "encoder.0", "src_mask = (src != PAD)", "src_mask = (src == PAD)"),
    of("translator", "P09", None, "torch.exp(torch.arange(0, D, 2) * -(math.log(10000.0) / D))",
       "torch.exp(torch.arange(0, D, 2) * -math.log(10000.0))"),
    of("translator", "N12", "attention", "x = self.n1(x + self.attention(x, x, tgt_mask))",
       "x = x + self.attention(self.n1(x), x, tgt_mask)"),
    of("bert", "M08", None, "attention_mask == 0", "(attention_mask == 0).float() * -9.0"),
]  # fmt: skip

ALL_MORE = [*MORE_GPT, *MORE]
