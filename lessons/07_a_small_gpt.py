# %% [markdown]
# # 7. A small GPT
#
# Everything is on the table: embeddings, positions, attention, masks, norms, a feed-forward. In this lesson you put
# them together into a GPT of 813,440 parameters, and then do what experienced people do *before* they train: check the
# fresh loss, overfit one batch, look at shapes and at the gradient's norm. Then you train, read the curve, and let it
# write.

# %%
import math
import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from clearhead.data import stories, training_batch
from clearhead.inference.sampling import keep_top_k, keep_top_p
from clearhead.training import Stepped

FULL = os.environ.get("SIZE") == "full"
torch.manual_seed(0)

# %% [markdown]
# ## The text
#
# Tiny Shakespeare, by characters, if it is in the folder that `CLEARHEAD_DATA` names. Otherwise this lesson goes on
# with the stories that ship with the library, and leaves out the numbers that belong to Shakespeare.

# %%
path = Path(os.environ.get("CLEARHEAD_DATA", "")) / "shakespeare.txt"
SHAKESPEARE = path.is_file()
text = path.read_text(encoding="utf-8") if SHAKESPEARE else stories.text(1_000_000, 1)
letters = sorted(set(text))
V = len(letters)
number_of = {letter: number for number, letter in enumerate(letters)}
tokens = torch.tensor([number_of[letter] for letter in text])
cut = int(0.9 * len(tokens))
train, held_out = tokens[:cut].numpy(), tokens[cut:].numpy()
print(f"{len(tokens):,} characters, {V} distinct; {'Shakespeare' if SHAKESPEARE else 'stories'}")
if SHAKESPEARE:
    assert (len(tokens), V) == (1_115_394, 65)

# %% [markdown]
# ## Assemble
#
# Here is the whole model, by hand, in one screen. Read `forward` from the top: look up token and position, add them,
# walk through the blocks, normalize once more, and compare with every row of the embedding table. The last step uses
# the *same* table as the first: the embeddings are *tied*.

# %%
T, D, H, L = 128, 128, 4, 4


class HandBlock(nn.Module):
    """x + attention(norm(x)), then x + feedforward(norm(x))."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.query, self.key, self.value, self.output = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)
        self.H = H

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)  # (B, T, D)
        q, k, v = (f(normed).unflatten(-1, (self.H, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, D / H)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class HandGPT(nn.Module):
    def __init__(self, V: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.Sequential(*(HandBlock(D, H) for _ in range(L)))
        self.norm = nn.LayerNorm(D)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions.weight[: ids.shape[1]]  # (B, T, D)
        return self.norm(self.blocks(x)) @ self.embedding.weight.T  # (B, T, V)


by_hand = HandGPT(V)
sizes = {
    "embedding": V * D,
    "positions": T * D,
    "attention": L * 4 * D * D,
    "feed-forward": L * 2 * D * 4 * D,
    "norms": (2 * L + 1) * 2 * D,
}
print({name: f"{size:,}" for name, size in sizes.items()})
total = sum(parameter.numel() for parameter in by_hand.parameters())
print(f"in all {total:,}")
assert total == sum(sizes.values())
if SHAKESPEARE:
    assert total == 813_440  # a number of 1.6 million is often quoted for these sizes; it is not so

# %% [markdown]
# The library's default configuration is this model. With the same weights it gives the same logits.

# %%
config = ch.ModelConfig(vocab_size=V, block_size=T, n_layers=L, n_heads=H, d_model=D)
model = ch.DecoderLM(config, seed=1)
names = {
    "embedding": "embedding",
    "positions": "positions",
    "norm": "stack.norm",
    "norm1": "self_attention.norm",
    "norm2": "feedforward.norm",
    "up": "feedforward.part.up",
    "down": "feedforward.part.down",
    **{name: f"self_attention.part.{name}" for name in ("query", "key", "value", "output")},
}


def library_name(name: str) -> str:
    """blocks.0.norm1.weight -> stack.blocks.0.self_attention.norm.weight"""
    *block, module, kind = name.split(".")
    return ".".join([*(["stack", *block] if block else []), names[module], kind])


theirs = model.state_dict()
by_hand.load_state_dict({name: theirs[library_name(name)] for name in by_hand.state_dict()})
ids = torch.randint(V, (2, 50))
torch.testing.assert_close(by_hand(ids), model(ids), rtol=1e-4, atol=1e-5)
assert sum(parameter.numel() for parameter in model.parameters()) == total
print("the same logits")

# %% [markdown]
# ## Before training, 1: the fresh loss
#
# A model that knows nothing should think all $V$ tokens equally likely. Its loss is then $\ln V$. Print it before the
# first step, always. If it is much higher, the model begins by being *confidently wrong*, and spends its first hundred
# steps on unlearning that.
#
# PyTorch's default is such a case: `nn.Embedding` draws from a unit normal. In a tied model each of the $D$ = 128
# products in a logit is then of size 1.


# %%
def batch(step: int, size: int = 16 if FULL else 8, source: object = train, width: int = T) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a step, a pure function of the step."""
    return training_batch(source, block_size=width, batch_size=size, seed=1, step=step)


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


with torch.no_grad():
    fresh = loss_of(model, *batch(0)).item()
    default = loss_of(HandGPT(V), *batch(0)).item()
print(f"ln V = {math.log(V):.3f}; this library's initial weights: {fresh:.3f}; PyTorch's defaults: {default:.1f}")
assert abs(fresh / math.log(V) - 1) < 0.02
assert default > 5 * math.log(V)

# %% [markdown]
# ## Before training, 2: overfit one batch
#
# Take one batch, and train on it again and again. A model with more parameters than the batch has tokens must learn it
# by heart, and the loss must go to almost nothing. If it does not, something is broken, and you have found it in
# seconds and not overnight. We ask for a loss below 0.05 within 100 steps, on four texts of 32 characters.
#
# The opposite is a symptom, too: a loss that falls to zero on *fresh* batches means that the model can see its targets
# (lesson 5).


# %%
def overfit(config: ch.ModelConfig, **options: object) -> tuple[float, int | None]:
    """The loss after 100 steps on one batch, and the first step at which it was below 0.05."""
    inputs, targets = batch(0, 4, width=32)
    plan = ch.TrainConfig(steps=100, schedule="linear", weight_decay=0.0, precision="float32", **options)
    events = ch.fit(ch.DecoderLM(config, seed=1), plan, lambda step: (inputs, targets), seed=1)
    losses = [event.loss for event in events if isinstance(event, Stepped)]
    return losses[-1], next((step for step, loss in enumerate(losses, 1) if loss < 0.05), None)


trials = [("adamw", 3e-3), ("muon", 1e-2), ("adamw", 1e-2), ("adamw", 3e-4), ("SGD", 0.1)]
for optimizer, rate in trials if FULL else trials[:1]:
    last, below = overfit(config, optimizer=optimizer, learning_rate=rate, warmup_steps=5)
    print(f"{optimizer:5} {rate:g}: {last:.4f} after 100 steps; below 0.05", f"at step {below}" if below else "never")
    assert (below is not None) == ((optimizer, rate) != ("adamw", 3e-4))

# %% [markdown]
# Which optimizer and which rate belongs to the claim. AdamW does it with a rate of 3e-3, a warm-up of five steps and
# the gradient clipped at 1; Muon is there sooner. At full size the lesson tries three more. With a rate three times as
# high AdamW makes it just before the end, and SGD with momentum halfway; with a tenth of the rate, the same healthy
# model does *not* get there. If your model fails this test, try a second rate before you look for the bug.
#
# ## Two habits: shapes and the gradient's norm
#
# **Shapes.** Run the model once and read every shape. You need not remember them; you need to be surprised when
# one is wrong. The library prints them with the names of their axes: `clearhead trace`.

# %%
with ch.record(model) as recorded:
    model(batch(0)[0])
for name in (
    "embedding",
    "stack.blocks.0.self_attention.part.q",
    "stack.blocks.0.self_attention.part.attention",
    "stack.blocks.0.self_attention",
    "stack.blocks.0.feedforward.part.up",
    "stack.norm",
    "lm_head",
):
    print(f"{name:46} {recorded[name].shape}")
assert recorded["stack.blocks.0.self_attention.part.attention"].shape[1:] == (H, T, T)
assert recorded["lm_head"].shape[1:] == (T, V)

# %% [markdown]
# **The gradient's norm.** One number per step, printed beside the loss. It tells you that learning goes on (not zero),
# that the rate is sane (no jumps by factors of ten), and where clipping begins.
#
# ## Train
#
# `ch.fit` is a loop that yields events. Each `Stepped` holds the loss, the rate and the gradient's norm before
# clipping. We use Muon for the matrices, which reaches a loss in fewer steps than AdamW alone.

# %%
steps = 400 if FULL else 30
options = ch.TrainConfig(steps=steps, optimizer="muon", learning_rate=1e-2, schedule="linear", warmup_steps=10)


@torch.no_grad()
def held_out_loss(model: nn.Module, batches: int = 4) -> float:
    model.eval()
    losses = [loss_of(model, *batch(step, source=held_out)) for step in range(batches)]
    model.train()
    return torch.stack(losses).mean().item()


history, held = [], {0: held_out_loss(model)}
start = time.perf_counter()
for event in ch.fit(model, options, batch, seed=1):
    if isinstance(event, Stepped):
        history.append(event)
        if event.step % (steps // 10) == 0:
            held[event.step] = held_out_loss(model)
            print(
                f"step {event.step:4}  loss {event.loss:.3f}  held out {held[event.step]:.3f}  "
                f"gradient {event.gradient_norm:.2f}  rate {event.learning_rate:.4f}"
            )
print(f"{steps} steps in {time.perf_counter() - start:.0f} s")

counts = torch.bincount(tokens, minlength=V).double()
unigram = -(counts / counts.sum() * (counts / counts.sum()).log()).sum().item()
pairs = torch.bincount(tokens[:-1] * V + tokens[1:], minlength=V * V).view(V, V).double()
bigram = -(pairs / pairs.sum() * (pairs / pairs.sum(1, keepdim=True).clamp(min=1)).clamp(min=1e-30).log()).sum().item()
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
left.plot([event.step for event in history], [event.loss for event in history], linewidth=0.8, label="training")
left.plot(list(held), list(held.values()), marker="o", label="held out")
for name, level in (("ln V", math.log(V)), ("frequencies alone", unigram), ("pairs alone", bigram)):
    left.axhline(level, linestyle=":", linewidth=1, color="gray")
    left.text(0, level, name, fontsize=8, va="bottom")
left.set(xlabel="step", ylabel="loss (nats per character)")
left.legend()
right.plot([event.step for event in history], [event.gradient_norm for event in history], linewidth=0.8)
right.axhline(1, linestyle=":", linewidth=1, color="gray")
right.set(xlabel="step", ylabel="norm of the gradient, before clipping at 1", yscale="log")
plt.show()

# %% [markdown]
# ## Read the curve
#
# The dotted lines are what a model can reach that knows less than ours: nothing ($\ln V$), how frequent each character
# is, and which character follows which (lesson 1). A curve that stays *at* one of these levels tells you what the model
# uses. Flat at $\ln V$: nothing is learned at all. Flat at the frequencies: the input does not reach the output. Flat
# at the pairs: attention does nothing.
#
# The held-out loss lies beside the training loss, since every training batch is new. When the two part, the model
# begins to learn the text by heart.

# %%
print(f"ln V {math.log(V):.3f}, frequencies {unigram:.3f}, pairs {bigram:.3f}, held out {held[steps]:.3f}")
assert held[steps] < unigram
assert all(math.isfinite(event.gradient_norm) and event.gradient_norm > 0 for event in history)
if FULL:
    assert held[steps] < bigram - 0.4
    assert abs(held[steps] - sum(event.loss for event in history[-20:]) / 20) < 0.25

# %% [markdown]
# ## Let it write: temperature, top-k, top-p
#
# The model gives a distribution over the next character. *Temperature* divides the logits: below 1 the likely get
# likelier, above 1 all get more alike. *Top-k* keeps the k likeliest. *Top-p* keeps the fewest that have the
# probability p together, so it keeps one character where the model is sure, and many where it is not.

# %%
prompt = "ROMEO:\nI" if SHAKESPEARE else "Once upon a"


@torch.no_grad()
def next_logits(prompt: str) -> Tensor:
    return model.eval()(torch.tensor([[number_of[letter] for letter in prompt]]))[:, -1]  # (1, V)


logits = next_logits(prompt)


def by_hand_top_k(logits: Tensor, k: int) -> Tensor:
    kth = logits.topk(k).values[:, -1:]
    return logits.masked_fill(logits < kth, -torch.inf)


def by_hand_top_p(logits: Tensor, p: float) -> Tensor:
    probabilities, order = logits.softmax(-1).sort(descending=True)
    before = probabilities.cumsum(-1) - probabilities  # what the likelier ones hold
    return logits.masked_fill((before >= p).gather(1, order.argsort(-1)), -torch.inf)


torch.testing.assert_close(by_hand_top_k(logits, 5), keep_top_k(logits, 5))
torch.testing.assert_close(by_hand_top_p(logits, 0.8), keep_top_p(logits, 0.8))

settings = {
    "temperature 1": logits,
    "temperature 0.5": logits / 0.5,
    "temperature 2": logits / 2,
    "top-k 5": keep_top_k(logits, 5),
    "top-p 0.8": keep_top_p(logits, 0.8),
}
order = logits[0].argsort(descending=True)[:12]
figure, axes = plt.subplots(1, 5, figsize=(11, 2.6), sharey=True, layout="constrained")
entropies = {}
for axis, (name, changed) in zip(axes, settings.items(), strict=True):
    probabilities = changed.softmax(-1)[0]
    entropies[name] = -(probabilities * probabilities.clamp(min=1e-30).log()).sum().item()
    axis.bar([repr(letters[number])[1:-1] for number in order], probabilities[order])
    axis.set(title=f"{name}", xlabel=f"{int((probabilities > 0).sum())} left, {entropies[name]:.2f} nats")
axes[0].set_ylabel("probability of the next character")
plt.show()
assert entropies["temperature 0.5"] < entropies["temperature 1"] < entropies["temperature 2"]
assert math.isclose(keep_top_p(logits, 0.8).softmax(-1).sum().item(), 1, rel_tol=1e-5)

# %%
ids = torch.tensor([[number_of[letter] for letter in prompt]])
for choice in ({"temperature": 0.0}, {"temperature": 0.8}, {"temperature": 1.5}, {"temperature": 1.0, "top_p": 0.9}):
    continued = model.generate(ids, max_new_tokens=120 if FULL else 40, seed=1, **choice)
    print(choice, repr("".join(letters[number] for number in continued[0])))

# %% [markdown]
# The temperature 0 takes the likeliest character each time, and soon runs in a circle. At 1.5 it misspells. In between
# it writes.
#
# ## Tied embeddings, measured
#
# Tying saves $V \cdot D$ parameters. Here that is 8,320 of 813,440, one percent; with GPT-2's vocabulary of 50,257 and
# 768 dimensions it is 38.6 million of 163 million. Does it cost loss? Same data, same steps, a smaller model, and more
# than one seed, for a difference between two trainings means little if two seeds differ as much.


# %%
def trial(changes: dict[str, object], seed: int, steps: int) -> tuple[int, float]:
    """Parameters and held-out loss after so many steps."""
    sizes = {"vocab_size": V, "block_size": T, "n_layers": 2, "n_heads": 4, "d_model": 64}
    small = ch.DecoderLM(ch.ModelConfig(**sizes | changes), seed=seed)
    plan = ch.TrainConfig(steps=steps, optimizer="muon", learning_rate=1e-2, schedule="linear", warmup_steps=5)
    for _ in ch.fit(small, plan, lambda step: batch(step + 1000 * seed, 8), seed=seed):
        pass
    return sum(parameter.numel() for parameter in small.parameters()), held_out_loss(small, 8)


seeds = (1, 2, 3) if FULL else (1, 2)
results = {}
for tied in (True, False):
    runs = [trial({"tie_embeddings": tied}, seed, 150 if FULL else 15) for seed in seeds]
    results[tied] = [loss for _, loss in runs]
    print(
        f"{'tied' if tied else 'untied':6} {runs[0][0]:,} parameters, held-out loss",
        [f"{x:.3f}" for x in results[tied]],
    )
difference = sum(results[True]) / len(seeds) - sum(results[False]) / len(seeds)
spread = max(max(losses) - min(losses) for losses in results.values())
print(f"tied less untied: {difference:+.3f}; seeds differ by up to {spread:.3f}")
assert 50_257 * 768 == 38_597_376
assert abs(difference) < 0.4

# %% [markdown]
# At full size tied and untied end within what the seeds differ by: here tying costs nothing. After the few steps of the
# test size the tied model is still behind.
#
# ## Scaled residual initialization at 4, 12 and 48 layers
#
# Each block adds two things to the stream. If all of them are of one size and independent, the stream grows like the
# square root of their number, and a deep model begins with a large stream whose early parts drown. GPT-2's remedy is to
# shrink the matrices that *write* to the stream, `output` and `down`, by $1 / \sqrt{2 L}$: then the sum of $2L$
# branches is as large as one. Here is the share that the blocks add, with the scaling and without it.


# %%
@torch.no_grad()
def added_by_blocks(n_layers: int, scaled: bool) -> float:
    """The size of what all blocks add to the stream, in a fresh model whose embeddings have size 1."""
    shape = ch.ModelConfig(vocab_size=V, block_size=32, n_layers=n_layers, n_heads=4, d_model=D)
    deep = ch.DecoderLM(shape, seed=1)
    for block in deep.stack.blocks:
        for matrix in (block.self_attention.part.output, block.feedforward.part.down):
            matrix.weight *= 1 if scaled else math.sqrt(2 * n_layers)
    x = torch.randn(8, 32, D, generator=torch.Generator().manual_seed(0))
    out = x
    for block in deep.stack.blocks:
        out = block(out, mask="causal")
    return (out - x).square().mean().sqrt().item()


added = {(layers, scaled): added_by_blocks(layers, scaled) for layers in (4, 12, 48) for scaled in (True, False)}
for layers in (4, 12, 48):
    print(f"{layers:2} layers: scaled {added[layers, True]:.3f}, not scaled {added[layers, False]:.3f}")
growth = {scaled: added[48, scaled] / added[4, scaled] for scaled in (True, False)}
print(f"from 4 to 48 layers: scaled x {growth[True]:.2f}, not scaled x {growth[False]:.2f}; sqrt(12) = {12**0.5:.2f}")
assert abs(growth[True] - 1) < 0.25
assert abs(growth[False] / 12**0.5 - 1) < 0.3
assert abs(added[48, False] / added[48, True] / math.sqrt(96) - 1) < 0.2

# %% [markdown]
# ## Exercises
#
# **1.** A well-known lecture trains a model of this kind with 10,788,929 parameters: 6 layers, 6 heads, 384 dimensions,
# a context of 256, 65 characters, an untied head with a bias, biases in the feed-forward and in the output projection
# of the attention, but none for query, key and value. Do you get the same number?

# %% tags=["hide-cell"]
v, t, d, layers = 65, 256, 384, 6
attention = 3 * d * d + (d * d + d)
feedforward = (d * 4 * d + 4 * d) + (4 * d * d + d)
lecture = v * d + t * d + layers * (attention + feedforward + 2 * 2 * d) + 2 * d + (d * v + v)
print(f"{lecture:,}")
assert lecture == 10_788_929

# %% [markdown]
# **2.** Turn a loss in nats per character into a perplexity and into bits per character. How many bits does your model
# need for the held-out text, and how many does a file of 8 bits per character?

# %% tags=["hide-cell"]
bits = held[steps] / math.log(2)
print(f"loss {held[steps]:.3f}: perplexity {math.exp(held[steps]):.2f}, {bits:.2f} bits per character, of 8")
assert math.isclose(2**bits, math.exp(held[steps]), rel_tol=1e-6)
assert bits < 8

# %% [markdown]
# **3.** Cross out the position table of the fresh model (`positions="none"`) and overfit one batch again. Does it still
# go below 0.05? Why does a causal model manage without positions at all? (Lesson 4 knows more.)

# %% tags=["hide-cell"]
without = config.model_copy(update={"positions": "none"})
last, below = overfit(without, optimizer="adamw", learning_rate=3e-3, warmup_steps=5)
print(f"without positions: {last:.4f} after 100 steps, below 0.05 at step {below}")
assert below is not None
# The mask shows how many tokens stand before: the first one attends to one key, the second to two, and so on.

# %% [markdown]
# ## Where this stands in the house
#
# - [decoder_lm](../src/clearhead/models/decoder_lm.py) is the model, [the factory](../src/clearhead/models/factory.py)
#   builds its parts from a config, and [initialization](../src/clearhead/models/initialization.py) has the table of
#   initial sizes.
# - [the loop](../src/clearhead/training/loop.py) is `ch.fit`; [Muon](../src/clearhead/training/muon.py) and
#   [the schedules](../src/clearhead/training/schedules.py) stand beside it.
# - [sampling](../src/clearhead/inference/sampling.py): temperature, top-k, top-p and more, as pure functions.
# - `clearhead train my.txt` does all of this, preflight included. In [the studio](../docs/studio.md) you watch the
#   curve and drag the temperature.
