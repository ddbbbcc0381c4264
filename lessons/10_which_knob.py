# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---
# %% [markdown]
# # 10. Which knob
#
# The model works. Now it should be better, and there are forty options. This lesson turns the four that matter first,
# on one small corpus, each with more than one seed: dropout, the decay of the learning rate, the context length, and
# the size. It measures what the model has learned by heart, and it ends with a duel: a small model that was tuned
# against a large one that was not, both with the same amount of computing.
#
# One rule above all: **a difference smaller than the difference between two seeds is no difference.** So every result
# is a mean over seeds with its spread.

# %%
import math
import os
from functools import cache
from statistics import mean
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch

import clearhead as ch
from clearhead.data import stories
from clearhead.inspection import flops_per_token, measure_memorization

FULL = os.environ.get("SIZE") == "full"
steps = 600 if FULL else 60
seeds = (1, 2, 3) if FULL else (1, 2)

text, held_out = stories.text(410_000, 1)[:400_000], stories.text(20_000, 2)
characters = sorted(set(text + held_out))
number = {character: i for i, character in enumerate(characters)}
V, TOKENS = len(characters), 512 if FULL else 256  # tokens in a batch, whatever the context length
train_ids, held_out_ids = (torch.tensor([number[c] for c in part]) for part in (text, held_out))
floor = stories.entropy_per_character()
print(f"{len(train_ids):,} characters to learn from, {len(held_out_ids):,} held out, V = {V}, floor {floor:.3f} nats")

# %% [markdown]
# ## A trial
#
# Everything that we compare goes through one function: it builds a model, trains it, and measures the loss on the
# text that it was trained on and on the text that was held out. Both are measured in the same way, on as many
# windows, without dropout.


# %%
class Result(NamedTuple):
    model: ch.DecoderLM
    train_loss: float
    held_out_loss: float


def windows(ids, T, rows, generator):
    starts = torch.randint(len(ids) - T, (rows,), generator=generator)
    chosen = torch.stack([ids[start : start + T + 1] for start in starts.tolist()])
    return chosen[:, :-1], chosen[:, 1:]


@torch.no_grad()
def token_losses(model, ids, T, rows=64):
    """The loss of every position, (rows, T), on the same windows for every model of that context length."""
    model.eval()
    inputs, targets = windows(ids, T, rows, torch.Generator().manual_seed(0))
    return torch.nn.functional.cross_entropy(model(inputs).transpose(1, 2), targets, reduction="none")


@cache
def trial(
    seed,
    *,
    size=(2, 48),
    block_size=32,
    dropout=0.0,
    schedule="cosine",
    learning_rate=5e-3,
    steps=steps,
    text_length=400_000,
):
    n_layers, d_model = size
    config = ch.ModelConfig(
        vocab_size=V,
        block_size=block_size,
        n_layers=n_layers,
        n_heads=4,
        d_model=d_model,
        positions="rope",
        dropout=dropout,
    )
    model = ch.DecoderLM(config, seed=seed)
    options = ch.TrainConfig(
        steps=steps, learning_rate=learning_rate, schedule=schedule, warmup_steps=steps // 10, min_lr_ratio=0.0
    )
    own_ids = train_ids[:text_length]

    def batch(step):
        generator = torch.Generator().manual_seed(1000 * seed + step)
        return windows(own_ids, block_size, TOKENS // block_size, generator)

    for _ in ch.fit(model, options, batch, seed=seed):
        pass
    losses = (token_losses(model, ids, block_size).mean().item() for ids in (own_ids, held_out_ids))
    return Result(model, *losses)


def compare(label, **options):
    """Trials with all seeds: prints mean and spread, returns the results."""
    results = [trial(seed, **options) for seed in seeds]
    trained = mean(result.train_loss for result in results)
    means = f"train {trained:.3f}  held out {held_out_mean(results):.3f}"
    print(f"{label:32} {means}  (seeds differ by {spread(results):.3f})")
    return results


def held_out_mean(results):
    return mean(result.held_out_loss for result in results)


def spread(results):
    losses = [result.held_out_loss for result in results]
    return max(losses) - min(losses)


def gap(results):
    return mean(result.held_out_loss - result.train_loss for result in results)


# %% [markdown]
# ## Decay
#
# The same model and steps at two peaks. Once the rate stays at its peak, once it falls to zero along a cosine. A large
# rate travels far and cannot settle; the decay lets it.

# %%
decay = {
    (rate, schedule): held_out_mean(compare(f"{schedule}, peak {rate}", schedule=schedule, learning_rate=rate))
    for rate in (0.005, 0.02)
    for schedule in ("constant", "cosine")
}
for rate in (0.005, 0.02):
    print(f"at a peak of {rate} decay gains {decay[rate, 'constant'] - decay[rate, 'cosine']:+.3f} nats")
if FULL:
    assert min(decay, key=decay.get) == (0.02, "cosine")
    assert decay[0.02, "cosine"] < decay[0.02, "constant"]

# %% [markdown]
# So decay is not better in itself: it makes a larger peak affordable. At the small peak these short trainings gained
# nothing from it, since a rate that falls also travels less far; at the large one the constant rate never settles. The
# best of the four is the large peak with decay. At test size look at the sign of the gains before you believe a rule.
#
# ## Dropout
#
# Dropout is a remedy for one illness, learning by heart, and costs something where the patient is well. Two texts:
# the long one, and one so short that the model reads it many times.

# %%
short = 3_000 if FULL else 1_000
passes = steps * TOKENS / short
print(f"the short text is read {passes:.0f} times, the long one {steps * TOKENS / len(text):.1f} times")
table = {
    (name, dropout): compare(f"{name} text, dropout {dropout}", dropout=dropout, text_length=length)
    for name, length in (("long", len(text)), ("short", short))
    for dropout in (0.0, 0.3)
}
assert held_out_mean(table["long", 0.3]) > held_out_mean(table["long", 0.0])  # costs
assert gap(table["short", 0.0]) > gap(table["long", 0.0])  # the illness
assert gap(table["short", 0.3]) < gap(table["short", 0.0])  # the remedy
if FULL:
    assert held_out_mean(table["short", 0.3]) < held_out_mean(table["short", 0.0])

# %% [markdown]
# ## Learned by heart
#
# The *gap* between the two losses says that something was learned by heart; `measure_memorization` says what. It
# looks for every sequence of 12 characters of a text among those of the training text. A text of the same kind shares
# some by chance, so the held-out text is the yardstick.

# %%
N = 12
own = train_ids[:short].numpy()


def written(result, seed=1):
    torch.manual_seed(seed)
    start = held_out_ids[:4][None].repeat(4, 1)
    return result.model.generate(start, max_new_tokens=120, temperature=0.8)[:, 4:].tolist()


by_chance = measure_memorization(own, [held_out_ids[:500].tolist()], n=N)
print(f"{'a held-out text':32} shares {by_chance.share:6.1%} of its {N}-grams with the short text")
copied = {}
for dropout in (0.0, 0.3):
    result = table["short", dropout][0]
    copied[dropout] = measure_memorization(own, written(result), n=N)
    label, share, span = f"written after dropout {dropout}", copied[dropout].share, copied[dropout].longest
    print(f"{label:32} shares {share:6.1%}, longest span {span}")
if FULL:
    assert copied[0.0].share > 5 * by_chance.share
    assert copied[0.0].share > copied[0.3].share

# %% [markdown]
# ## Context length against size
#
# Both cost computing: a longer context through attention, a larger model through everything. The batch holds as many
# tokens in each case, so a step reads as much text.

# %%
grid = {}
for block_size in (8, 64):
    for size in ((2, 32), (2, 64)):
        label = f"context {block_size}, {size[0]} layers of {size[1]}"
        grid[block_size, size] = compare(label, block_size=block_size, size=size)
        config = grid[block_size, size][0].model.config
        print(f"{'':32} {flops_per_token(config):,} FLOPs per token")

# %% [markdown]
# A fair look at what context is worth does not need two models. One model's loss by position shows it: the first
# character of a window is predicted from one character, the last from 64.

# %%
by_position = torch.stack([token_losses(r.model, held_out_ids, 64).mean(0) for r in grid[64, (2, 64)]]).mean(0)
plt.plot(range(1, 65), by_position.tolist(), color="tab:blue")
plt.axhline(floor, color="gray", linestyle="--", label="the corpus's entropy")
plt.xlabel("characters read")
plt.ylabel("held-out loss, nats per character")
plt.legend()
plt.show()
first, last = by_position[:2].mean().item(), by_position[32:].mean().item()
print(f"after one or two characters {first:.3f}, after 33 to 64 {last:.3f}")
assert last < first

# %% [markdown]
# This is also a trap: the mean over a window of 8 holds more early, hard positions than the mean over a window of 64.
# Two models with different context lengths must be compared on the positions that both have, or on what a reader
# meets in the end: long text.
#
# ## The duel
#
# A small model may try several learning rates; the large one gets what a tutorial prints: 3e-4 without a thought.
# Both may spend the same FLOPs on a training, so the large one takes fewer steps.

# %%
SMALL, LARGE = (2, 48), (4, 96)


def flops_of(size):
    config = ch.ModelConfig(vocab_size=V, block_size=32, n_layers=size[0], n_heads=4, d_model=size[1], positions="rope")
    return flops_per_token(config)


large_steps = max(10, round(steps * flops_of(SMALL) / flops_of(LARGE)))
ratio = flops_of(LARGE) / flops_of(SMALL)
print(f"the large model costs {ratio:.1f} times as much per token: {large_steps} steps, not {steps}")
rates = (1.5e-3, 5e-3, 1.5e-2)
small = {rate: compare(f"small, rate {rate}", learning_rate=rate) for rate in rates}
untuned = compare("large, rate 0.0003", size=LARGE, learning_rate=3e-4, steps=large_steps)
best = min(small.values(), key=held_out_mean)
print(f"small and tuned {held_out_mean(best):.3f}, large and not {held_out_mean(untuned):.3f}")
assert held_out_mean(best) < held_out_mean(untuned)

# %% [markdown]
# The small one wins, clearly. But did it win because it is small, or because it was tuned? One more trial answers
# that, and belongs to the duel, if it is to be fair: the large one with the same three rates.

# %%
large = {rate: compare(f"large, rate {rate}", size=LARGE, learning_rate=rate, steps=large_steps) for rate in rates}
best_large = min(large.values(), key=held_out_mean)
difference = held_out_mean(best) - held_out_mean(best_large)
losses = [result.held_out_loss for results in (best, best_large) for result in results]
noise = max(
    max(losses[: len(seeds)]) - min(losses[: len(seeds)]), max(losses[len(seeds) :]) - min(losses[len(seeds) :])
)
winner = "neither" if abs(difference) <= noise else "the large one" if difference > 0 else "the small one"
means = f"small {held_out_mean(best):.3f}, large {held_out_mean(best_large):.3f}"
print(f"both tuned, with equal FLOPs: {means}; seeds differ by up to {noise:.3f}")
print(f"better beyond the difference between seeds: {winner}")
by_rate, whole = (held_out_mean(untuned) - held_out_mean(results) for results in (best_large, best))
print(f"of the {whole:.2f} nats between them at first, {by_rate / whole:.0%} was the learning rate")
assert by_rate > noise

# %%
for label, results, color in (("small", small, "tab:blue"), ("large", large, "tab:orange")):
    for rate, of_rate in results.items():
        plt.plot([rate] * len(seeds), [r.held_out_loss for r in of_rate], "o", color=color)
    plt.plot(list(results), [held_out_mean(r) for r in results.values()], color=color, label=label)
plt.plot([3e-4] * len(seeds), [r.held_out_loss for r in untuned], "x", color="tab:orange", label="large, untuned")
plt.xscale("log")
plt.xlabel("learning rate")
plt.ylabel("held-out loss, nats per character")
plt.legend()
plt.show()

# %% [markdown]
# The last line says how much of the first difference was the rate alone; the rest is the size. So what a size gives
# cannot be said without its learning rate. Tune the rate first, with three values a factor of three apart; it is the
# cheapest knob, and the one that most comparisons of architectures forget.
#
# ## Exercises
#
# **1.** Fill in the middle of the dropout table: is 0.1 between 0 and 0.3 on the short text?

# %% tags=["hide-cell"]
middle = compare("short text, dropout 0.1", dropout=0.1, text_length=short)
print(f"gaps: {gap(table['short', 0.0]):.3f}, {gap(middle):.3f}, {gap(table['short', 0.3]):.3f}")
assert gap(middle) < gap(table["short", 0.0]) + 0.02

# %% [markdown]
# **2.** How large is the difference between two seeds by itself, and what does it mean for a gain of 0.005 nats?

# %% tags=["hide-cell"]
print(f"the same options, {len(seeds)} seeds: {spread(table['long', 0.0]):.4f} nats apart")
print("a gain of 0.005 needs many more seeds to be believed")
assert spread(table["long", 0.0]) > 0

# %% [markdown]
# **3.** Bits per byte compare models with different tokenizers. Convert the best held-out loss; this text is ASCII.

# %% tags=["hide-cell"]
assert held_out.isascii()
bits = held_out_mean(best) / math.log(2)
print(
    f"{held_out_mean(best):.3f} nats per character are {bits:.3f} bits per byte; the floor is {floor / math.log(2):.3f}"
)
assert bits > floor / math.log(2)

# %% [markdown]
# ## Where this stands in the house
#
# - the schedules: [schedules.py](../src/clearhead/training/schedules.py)
# - the loop: [loop.py](../src/clearhead/training/loop.py)
# - dropout: [dropout.py](../src/clearhead/parts/dropout.py)
# - its place: [sublayer.py](../src/clearhead/parts/sublayer.py)
# - what is copied: [memorization.py](../src/clearhead/inspection/memorization.py)
# - FLOPs on paper: [cost](../src/clearhead/inspection/cost)
# - how the default models were chosen: [presets.py](../src/clearhead/config/presets.py), and dropout by passes:
#   [passes.md](../benchmarks/results/passes.md)
# - two runs side by side, in the browser: [the studio](../docs/studio.md)
