# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---
# %% [markdown]
# # 11. What heads learn
#
# Nobody tells an attention head what to do. In this lesson we look at what the heads of *your* model do after a
# training: first with the eye, then with numbers, then by taking each head away and asking what the loss says. In the
# second half a circuit of two heads appears while we watch: induction, the shortest program that a Transformer learns
# from nothing.

# %%
import math
import os

import matplotlib.pyplot as plt
import torch
from torch.nn import functional as F

import clearhead as ch
from clearhead.data import stories
from clearhead.inspection import ablate, at_heads, attention_sites, intervene, mean_activations, measure_heads
from clearhead.training import Stepped

FULL = os.environ.get("SIZE") == "full"
text = stories.text(200_000, 1)
characters = sorted(set(text))
number = {character: i for i, character in enumerate(characters)}
data = torch.tensor([number[character] for character in text])

# %% [markdown]
# ## Your model
#
# A decoder of two layers with four heads each, on the stories.

# %%
T = 64
config = ch.ModelConfig(vocab_size=len(characters), block_size=T, n_layers=2, n_heads=4, d_model=64, positions="rope")
model = ch.DecoderLM(config, seed=1)


def batch(step, rows=8):
    starts = torch.randint(len(data) - T, (rows,), generator=torch.Generator().manual_seed(step))
    windows = torch.stack([data[i : i + T + 1] for i in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


sample_ids = batch(10**6)[0]  # text, (B, T)
fresh_heads = measure_heads(model, sample_ids)
steps = 2000 if FULL else 100
options = ch.TrainConfig(steps=steps, optimizer="muon", learning_rate=0.01, schedule="linear", warmup_steps=10)
losses = [event.loss for event in ch.fit(model, options, batch, seed=1) if isinstance(event, Stepped)]
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; ln V = {math.log(len(characters)):.3f}")
assert losses[-1] < 0.7 * losses[0]

# %% [markdown]
# ## With the eye
#
# `ch.record` keeps what the model computes on the way. `attention[layer]` is (B, H, T, T): row i holds what position
# i takes from each position before it. Each row sums to one, and above the diagonal everything is zero.

# %%
prompt = text[text.index("One day") :][:32]
ids = torch.tensor([[number[character] for character in prompt]])
with torch.no_grad(), ch.record(model) as trace:
    model(ids)
maps = [torch.as_tensor(trace.attention[layer])[0] for layer in (0, 1)]
for attention in maps:
    torch.testing.assert_close(attention.sum(-1), torch.ones(attention.shape[:2]))
    assert (attention.triu(1) == 0).all()

figure, axes = plt.subplots(2, 4, figsize=(10, 5.4), sharex=True, sharey=True)
for layer, row in enumerate(axes):
    for head, axis in enumerate(row):
        axis.imshow(maps[layer][head], cmap="Blues", vmin=0, vmax=1)
        axis.set_title(f"layer {layer}, head {head}", fontsize=9)
figure.supxlabel("attends to position")
figure.supylabel("position")
plt.tight_layout()
plt.show()

# %% [markdown]
# A bright line just below the diagonal is a head that reads the token before. A broad gray is an average. What you
# see depends on your seed; a map is an anecdote. So next, numbers.
#
# ## With numbers
#
# `measure_heads` takes four means for each head: the entropy of its attention, in bits (3 bits: as if it looked at 8
# tokens), and the attention that goes to the token before, to earlier occurrences of the same token, and to what came
# *after* those. Here they are measured on text. Without text it feeds random tokens that repeat, where nothing has a
# meaning; that is the sharper test, and we come to it below.

# %%
heads = measure_heads(model, sample_ids)
print(heads.verdict)
for head in heads.heads:
    print(
        f"{head.name:15} entropy {head.entropy:.2f} bits  previous {head.previous_token:.2f}  "
        f"duplicate {head.duplicate_token:.2f}  induction {head.induction:.2f}"
    )
previous = heads.strongest("previous_token")[0]
fresh_previous = fresh_heads.strongest("previous_token")[0]
print(
    f"most attention to the token before: {fresh_previous.previous_token:.2f} fresh, "
    f"{previous.previous_token:.2f} trained"
)
assert previous.previous_token > 2 * fresh_previous.previous_token

# %% [markdown]
# Check one of them by hand. The score of the token before is the mean of the diagonal below the main one:

# %%
with torch.no_grad(), ch.record(model) as trace:
    model(sample_ids)
own_map = torch.as_tensor(trace.attention[previous.layer])[:, previous.head]  # (B, T, T)
by_hand = own_map.diagonal(-1, 1, 2).mean().item()
print(f"{previous.name}: {by_hand:.4f} by hand, {previous.previous_token:.4f} measured")
assert abs(by_hand - previous.previous_token) < 1e-4

# %% [markdown]
# ## By taking it away
#
# A map says where a head looks, not whether anybody listens. Put zero in place of what one head writes, leave the
# rest as it is, and measure the loss on text that was not trained on. `ablate` does so for every head, attention,
# feed-forward and block.

# %%
held_out = stories.text(30_000, 2)
held_out_ids = torch.tensor([number.get(character, 0) for character in held_out[: 16 * T + 1]])
batches = [(held_out_ids[:-1].view(16, T), held_out_ids[1:].view(16, T))]
ablated = ablate(model, batches)
print(ablated.verdict)
grid = torch.zeros(2, 4)
for entry in ablated.of("head"):
    grid[entry.layer, entry.head] = entry.change
plt.figure(figsize=(5, 2.6))
plt.imshow(grid, cmap="Reds", vmin=0, vmax=2 * grid.max())  # pale enough for black numbers
for layer in range(2):
    for head in range(4):
        plt.text(head, layer, f"{grid[layer, head]:+.3f}", ha="center", va="center", fontsize=9)
plt.xticks(range(4), [f"head {head}" for head in range(4)])
plt.yticks(range(2), [f"layer {layer}" for layer in range(2)])
plt.title("loss without the head, nats", fontsize=10)
plt.tight_layout()
plt.show()

# %% [markdown]
# The same by hand, for one head: an edit that writes zero, and the loss.

# %%
worst = ablated.of("head")[0]
site = next(site for site in attention_sites(model) if site.layer == worst.layer)
model.eval()
with torch.no_grad(), intervene(model, {f"{site.name}.mixed": at_heads(0.0, worst.head)}):
    loss = F.cross_entropy(model(batches[0][0]).flatten(0, 1), batches[0][1].flatten()).item()
print(f"without {worst.name}: {loss:.4f}, whole {ablated.loss:.4f}, change {loss - ablated.loss:+.4f}")
assert abs(loss - ablated.loss - worst.change) < 1e-4

one_by_one = sum(entry.change for entry in ablated.of("head") if entry.layer == 0)
together = next(entry.change for entry in ablated.of("attention") if entry.layer == 0)
print(f"heads of layer 0, one by one: {one_by_one:+.3f} in all; together: {together:+.3f}")
assert together > 0

# %% [markdown]
# The two numbers differ: heads are not independent. Where two do the same work, each can go and nobody notices; both
# cannot. So a head that costs nothing is not proved idle.
#
# ## Induction appears
#
# Now a corpus on which nothing but copying helps. Rows of random tokens repeat themselves after a number of tokens
# that differs from row to row. What comes next is what came after this token the last time. One attention layer
# cannot find that: the key at a position knows its own token, not the one before it. Two layers can. A head in an
# earlier layer writes into each position which token came before; a later head looks for the position whose
# *previous* token is the current one, and copies what stands there.

# %%
V, LENGTH, SHORTEST, LONGEST = 32, 32, 4, 12


def repeated(step, rows=24):
    """Random tokens that repeat; only what is repeated counts."""
    generator = torch.Generator().manual_seed(step)
    period = torch.randint(SHORTEST, LONGEST + 1, (rows, 1), generator=generator)
    tokens = torch.randint(V, (rows, LENGTH), generator=generator)
    ids = tokens.gather(1, torch.arange(LENGTH + 1) % period)
    is_new = torch.arange(1, LENGTH + 1) < period + 2
    return ids[:, :-1], ids[:, 1:].masked_fill(is_new, -100)


def learn(n_layers, steps, every=20):
    """Train on copying; return the model, its losses, and the strongest scores on the way."""
    config = ch.ModelConfig(
        vocab_size=V,
        block_size=LENGTH,
        n_layers=n_layers,
        n_heads=4,
        d_model=64,
        positions="learned",
        tie_embeddings=False,
    )
    model = ch.DecoderLM(config, seed=1)
    with torch.no_grad():
        for table in (model.embedding, model.positions):
            table.weight *= 50  # from GPT-2's deviation of 0.02 to 1, as nn.Embedding begins
    options = ch.TrainConfig(steps=steps, optimizer="muon", learning_rate=0.01, schedule="linear", warmup_steps=20)
    losses, scores = [], []
    for event in ch.fit(model, options, repeated, seed=1):
        if isinstance(event, Stepped):
            losses.append(event.loss)
            if event.step % every == 0:
                table = measure_heads(model)
                tops = [getattr(table.strongest(name)[0], name) for name in ("previous_token", "induction")]
                scores.append((event.step, *tops))
    return model, losses, scores


copy_steps = 600 if FULL else 250
copier, copy_losses, scores = learn(2, copy_steps)
print(f"loss on what repeats: {copy_losses[0]:.3f} -> {copy_losses[-1]:.3f}; ln V = {math.log(V):.3f}")

# %%
figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(6, 5))
top.plot(range(1, copy_steps + 1), copy_losses, color="tab:gray")
top.axhline(math.log(V), color="gray", linestyle=":")
top.set_ylabel("loss on what repeats, nats")
bottom.plot([s for s, _, _ in scores], [p for _, p, _ in scores], color="tab:blue", label="token before")
bottom.plot([s for s, _, _ in scores], [i for _, _, i in scores], color="tab:red", label="induction")
bottom.set_xlabel("step")
bottom.set_ylabel("strongest head's score")
bottom.legend()
plt.show()

# %% [markdown]
# The loss waits near ln V, and falls as both scores rise. The embeddings begin with a deviation of 1, as torch's
# `nn.Embedding` does: tokens and positions are then easy to tell apart, and the circuit is found soon. With GPT-2's
# 0.02 it takes far more steps. Which heads are they?

# %%
table = measure_heads(copier)
induction, before = table.strongest("induction")[0], table.strongest("previous_token")[0]
print(f"induction {induction.induction:.2f} in {induction.name}")
print(f"token before {before.previous_token:.2f} in {before.name}")
start_of_induction = scores[0][2]
assert induction.induction > 0.3 > start_of_induction
assert induction.layer == 1  # it needs a layer below
assert before.previous_token > 2 * scores[0][1]

# %% [markdown]
# ## The proof
#
# A score is a correlation. Take the heads away: those with at least half of the highest induction score, then others.
# They write their mean in place of what they compute, because the rest of the model counts on what they always write.

# %%
test = [repeated(10**6 + i) for i in range(2)]
means = mean_activations(copier, test)


def loss_without(chosen):
    """The loss where these (layer, head) pairs write their mean."""
    edits = {}
    for site in attention_sites(copier):
        if numbers := [head for layer, head in chosen if layer == site.layer]:
            edits[f"{site.name}.mixed"] = at_heads(means[f"{site.name}.mixed"], *numbers)
    copier.eval()
    with torch.no_grad(), intervene(copier, edits):
        inputs, targets = test[0]
        return F.cross_entropy(copier(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100).item()


high = [(head.layer, head.head) for head in table.heads if head.induction > induction.induction / 2]
reads_before = [(head.layer, head.head) for head in table.heads if head.previous_token > before.previous_token / 2]
others = [(h.layer, h.head) for h in table.heads if (h.layer, h.head) not in {*high, *reads_before}][: len(high)]
whole, without, control = loss_without([]), loss_without(high), loss_without(others)
print(f"whole {whole:.3f}; without the induction heads {high}: {without:.3f}; without {others}: {control:.3f}")
print(f"without the other half of the circuit, {reads_before}: {loss_without(reads_before):.3f}")
assert without > whole + 0.3
assert without > control

# %% [markdown]
# ## Exercises
#
# **1.** One layer cannot do it. Train a copier with one layer for as many steps.

# %% tags=["hide-cell"]
shallow, shallow_losses, _ = learn(1, copy_steps, every=copy_steps)
print(
    f"one layer {sum(shallow_losses[-10:]) / 10:.3f}, two {sum(copy_losses[-10:]) / 10:.3f}, ln V = {math.log(V):.3f}"
)
assert sum(shallow_losses[-10:]) > sum(copy_losses[-10:])

# %% [markdown]
# **2.** The entropy of a head that looks at all n tokens alike is log2(n) bits. Check it with a fresh model, whose
# attention is almost even.

# %% tags=["hide-cell"]
fresh = measure_heads(ch.DecoderLM(config, seed=1))
length = 2 * min(50, T // 2)  # the random tokens, twice
expected = sum(math.log2(n) for n in range(1, length + 1)) / length
print([round(head.entropy, 3) for head in fresh.heads], f"even attention: {expected:.3f}")
assert all(abs(head.entropy - expected) < 0.3 for head in fresh.heads)

# %% [markdown]
# **3.** Ablate by the mean instead of zero (`mean=True`). Does the same head matter most?

# %% tags=["hide-cell"]
by_mean = ablate(model, batches, mean=True)
print("zero:", worst.name, "mean:", by_mean.of("head")[0].name)
for entry in by_mean.of("head")[:3]:
    print(f"{entry.name}: {entry.change:+.4f}")
assert by_mean.loss == ablated.loss  # of the whole model

# %% [markdown]
# ## Where this stands in the house
#
# - what is recorded, and how: [capture](../src/clearhead/inspection/capture)
# - the four measures: [measures.py](../src/clearhead/inspection/heads/measures.py)
# - a loss without a part: [ablation.py](../src/clearhead/inspection/heads/ablation.py)
# - three seeds of the induction experiment: [induction.md](../benchmarks/results/induction.md)
# - `clearhead attend`, `clearhead ablate`: [seeing](../docs/seeing.md)
# - the heads of a run, enlarged with the mouse: [the studio](../docs/studio.md)
