# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---
# %% [markdown]
# # Errata of well-known tutorials
#
# Tutorials are copied, and their slips with them. Here are eight that are met again and again: what is printed, what
# is so, and the proof, executed. Nobody is named: the point is not who wrote it first, and everybody who builds
# Transformers has written some of these. Four are about numbers, four are faults in code, which the doctor names.

# %%
import warnings

import torch
from torch import nn
from torch.nn import functional as F

import clearhead as ch
from clearhead.doctor.loss_examination import examine_loss
from clearhead.inspection import parameters

torch.manual_seed(1)


def found_by_doctor(model, *only, kind="causal"):
    """The ids of what the doctor finds, printed with the module that it names."""
    report = ch.doctor.check(model, ch.doctor.Spec(kind=kind), only=only)
    for finding in report.findings:
        print(finding.status.upper(), finding.id, finding.title, "in", finding.where.module if finding.where else "-")
    return [finding.id for finding in report.findings]


# %% [markdown]
# ## 1. "The model has about 1.6 million parameters"
#
# *Printed* of four layers, four heads, width 128, a context of 128 and 65 characters. *So it is:* **813,440**, when
# the head shares the embedding's matrix and linear maps have no biases. Count it by hand: a block has 4 · 128²
# weights in its attention, 8 · 128² in its feed-forward, and two norms.

# %%
V, T, D, L = 65, 128, 128, 4
options = ch.PRESETS["tutorial"].model
config = ch.ModelConfig(**options, vocab_size=V)
on_paper = sum(parameters(config).values())
by_hand = V * D + T * D + L * (4 * D * D + 8 * D * D + 2 * 2 * D) + 2 * D
model = ch.DecoderLM(config)
counted = sum(p.numel() for p in model.parameters())
print(f"{by_hand:,} by hand, {on_paper:,} on paper, {counted:,} in the model")
assert by_hand == counted == on_paper == 813_440

untied_config = ch.ModelConfig(**options | {"tie_embeddings": False, "bias": True}, vocab_size=V)
untied = sum(parameters(untied_config).values())
print(f"with biases, and a head of its own: {untied:,}")
assert untied < 900_000  # no choice of these makes it 1.6 million

# %% [markdown]
# ## 2. "10.7 million parameters": which model?
#
# *Printed* as 10,788,929 in one place, and beside a config with a tied head and without biases in another. *So it
# is:* the number belongs to a config of its own: six layers of width 384, six heads, a context of 256, 65 characters,
# with learned positions, **a head with weights and a bias of its own**, queries, keys and values without bias, and
# everything else with one. With a tied head and no biases at all, the same sizes have fewer.

# %%
V, T, D, L = 65, 256, 384, 6
attention = 3 * D * D + (D * D + D)  # queries, keys, values; the output with its bias
feedforward = (4 * D * D + 4 * D) + (4 * D * D + D)
block = attention + feedforward + 2 * 2 * D
of_its_own = V * D + T * D + L * block + 2 * D + (D * V + V)
tied_config = ch.ModelConfig(vocab_size=V, block_size=T, n_layers=L, n_heads=6, d_model=D)
on_paper = sum(parameters(tied_config).values())
print(f"{of_its_own:,}; tied and without biases {on_paper:,}")
assert of_its_own == 10_788_929
assert on_paper < of_its_own

# %% [markdown]
# ## 3. "1,003,726 training tokens"
#
# *Printed* as the size of Tiny Shakespeare's training part. *So it is:* nine tenths of 1,115,394 characters are
# **1,003,854**. The smaller number is 1,003,854 - 128: in how many places a window of 128 can *begin*, so that its
# last target is still there.

# %%
n = int(0.9 * 1_115_394)
starts = n - 128
print(f"{n:,} characters, {starts:,} starts")
assert (n, starts) == (1_003_854, 1_003_726)
last_start = starts - 1  # the largest that randint(n - 128) draws
last_target = last_start + 128  # the window's last target stands one after its last input
assert last_target == n - 1  # the last character of all: none is left out, none is read beyond the end

# %% [markdown]
# ## 4. "Llama and Mistral tie their embeddings"
#
# *So it is:* their configs say no, by default and in the published 7 B models, and the models have a head of their
# own. GPT-2 and Gemma do tie, and so do the smallest of the later Llamas, whose configs say so. Never assume: read
# `tie_word_embeddings`.

# %%
warnings.filterwarnings("ignore", message="IProgress")  # of progress bars, which nobody needs here
try:
    from transformers import AutoModelForCausalLM, GemmaConfig, GPT2Config, LlamaConfig, MistralConfig
except ImportError:
    print("transformers is not installed, so this part is skipped")
else:
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    tied = {}
    for config_class in (LlamaConfig, MistralConfig, GemmaConfig):
        theirs = AutoModelForCausalLM.from_config(config_class(**sizes, **heads, pad_token_id=0))
        tied[config_class.__name__] = theirs.get_input_embeddings().weight is theirs.get_output_embeddings().weight
    theirs = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, **ends))
    tied["GPT2Config"] = theirs.get_input_embeddings().weight is theirs.get_output_embeddings().weight
    print(tied)
    assert tied == {"LlamaConfig": False, "MistralConfig": False, "GemmaConfig": True, "GPT2Config": True}

# %% [markdown]
# ## 5. A mini GPT out of encoder blocks
#
# *Printed:* a GPT made of `nn.TransformerEncoderLayer`, called without a mask, because "a decoder-only model has no
# cross-attention, so it is an encoder". *So it is:* an encoder with a **causal mask** is a decoder-only model.
# Without it every position reads its own answer. The loss becomes wonderful, and the text does not.


# %% tags=["hide-cell"]
class MiniGPT(nn.Module):
    def __init__(self, is_causal, vocab_size=37, d_model=32, block_size=64):
        super().__init__()
        self.is_causal = is_causal
        self.token, self.position = nn.Embedding(vocab_size, d_model), nn.Embedding(block_size, d_model)
        self.block = nn.TransformerEncoderLayer(d_model, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(d_model), nn.Linear(d_model, vocab_size)

    def forward(self, ids):
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) if self.is_causal else None
        return self.head(self.norm(self.block(x, mask)))


# %%
assert "M01" in found_by_doctor(MiniGPT(is_causal=False), "M01")
assert found_by_doctor(MiniGPT(is_causal=True), "M01") == []

# %% [markdown]
# ## 6. Label smoothing that counts the padding
#
# *Printed:* smoothing by hand, where the smoothed mass is summed over all positions. The targets at padding are
# dropped from the main term and forgotten in the other one. *So it is:* padding then gets a gradient, more of it in
# batches with more padding, and the loss depends on what was batched together.

# %% tags=["hide-cell"]
PAD, EPS = 0, 0.1


def counts_pads(logits, targets):
    log_p = logits.log_softmax(-1)
    real = targets != PAD
    main = -log_p.gather(-1, targets[..., None])[..., 0][real].mean()
    return (1 - EPS) * main + EPS * -log_p.mean(-1).mean()  # the second mean is over all positions


def counts_tokens(logits, targets):
    return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=PAD, label_smoothing=EPS)


# %%
logits, targets = torch.randn(1, 6, 11), torch.tensor([[5, 3, 9, PAD, PAD, PAD]])
for loss in (counts_pads, counts_tokens):
    print(f"\n{loss.__name__}: what it asks for at each position")
    sight = ch.doctor.xray(loss, logits, targets)
    print(sight.table())
    assert bool((sight.gradient[0, 3:].abs() > 0).any()) == (loss is counts_pads)
report = examine_loss(counts_pads, "counts_pads", pad_id=PAD)
print([f"{finding.id} {finding.title}" for finding in report.findings])
assert {"L05", "D05"} & {finding.id for finding in report.findings}
assert not examine_loss(counts_tokens, "counts_tokens", pad_id=PAD).findings

# %% [markdown]
# ## 7. LayerNorm over the wrong axes
#
# *Printed:* a norm by hand with `x.mean()` and `x.std()`, or `nn.LayerNorm((T, D))`, since "the layer" is all of it.
# *So it is:* a Transformer's LayerNorm takes the mean and variance of **one token's D numbers**. Over the time axis
# the mean holds the future.


# %% tags=["hide-cell"]
class OverTimeToo(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        mean, std = x.mean((1, 2), keepdim=True), x.std((1, 2), keepdim=True)
        return self.weight * (x - mean) / (std + 1e-5) + self.bias


# %%
wrong = MiniGPT(is_causal=True)
wrong.block.norm1 = OverTimeToo(32)
assert {"N01", "M19"} & {*found_by_doctor(wrong, "N01", "M19")}
x = torch.randn(1, 6, 32)
changed = x.clone()
changed[0, 5] += 3
moved = {
    name: (norm(changed) - norm(x))[0, 0].abs().max().item()
    for name, norm in (("over time", OverTimeToo(32)), ("LayerNorm", nn.LayerNorm(32)))
}
print("token 5 changes; token 0 moves by", moved)
assert moved["over time"] > 0
assert moved["LayerNorm"] == 0

# %% [markdown]
# ## 8. A residual wrapper that normalizes only the query
#
# *Printed:* one wrapper for all sublayers, `x + sublayer(norm(x))`, and a call with `lambda y: attention(y, x, x)`.
# *So it is:* in pre-norm self-attention **queries, keys and values** come from the normalized x. Here keys and values
# come from the raw residual stream, which grows with depth. It trains, so nobody looks.


# %% tags=["hide-cell"]
class Wrapped(nn.Module):
    def __init__(self, query_only, d_model=32):
        super().__init__()
        self.query_only = query_only
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attention = nn.MultiheadAttention(d_model, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d_model, 64), nn.GELU(), nn.Linear(64, d_model))

    def forward(self, x):
        y = self.norm1(x)
        read = x if self.query_only else y
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = x + self.attention(y, read, read, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Wrapper(nn.Module):
    def __init__(self, query_only, vocab_size=37, d_model=32, block_size=64):
        super().__init__()
        self.token, self.position = nn.Embedding(vocab_size, d_model), nn.Embedding(block_size, d_model)
        self.blocks = nn.ModuleList([Wrapped(query_only) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(d_model), nn.Linear(d_model, vocab_size)

    def forward(self, ids):
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# %%
assert "N12" in found_by_doctor(Wrapper(query_only=True), "N12")
assert found_by_doctor(Wrapper(query_only=False), "N12") == []

# %% [markdown]
# In this library the slip cannot be written: `Attention.forward` takes one tensor, and cross-attention is `memory`
# given.
#
# ## Where this stands in the house
#
# - parameters on paper: [weights.py](../src/clearhead/inspection/cost/weights.py)
# - the configs: [presets.py](../src/clearhead/config/presets.py)
# - norms, one token at a time: [norms.py](../src/clearhead/parts/norms.py)
# - the X-ray of a loss: [loss.py](../src/clearhead/doctor/probes/loss.py)
# - attention takes one tensor: [attention.py](../src/clearhead/parts/attention.py)
# - faults in public repositories, with their lines: [found in the wild](../docs/found-in-the-wild.md)
# - look at a config's numbers by clicking: [the studio](../docs/studio.md)
