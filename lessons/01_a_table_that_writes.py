# %% [markdown]
# # 1. A table that writes
#
# The smallest language model is a table. Its row for the letter `q` says how likely each letter is to come next. There
# is no attention in it and no depth, only one lookup, and yet it has everything else that a large model has: tokens,
# batches, logits, a loss, an optimizer, sampling.
#
# In this lesson you build all of that by hand. At the end you know what each printed loss *must* be before you print
# it, and you get the final one a second time, without any training: by counting.

# %%
import math
import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

import clearhead as ch
from clearhead.data import stories, training_batch

FULL = os.environ.get("SIZE") == "full"
torch.manual_seed(1)
torch.set_printoptions(precision=3, sci_mode=False)

# %% [markdown]
# ## The text
#
# Tiny Shakespeare is a file of plays. Put it as `shakespeare.txt` into a folder and name that folder in the variable
# `CLEARHEAD_DATA`; the numbers in the text below are Shakespeare's. Without it this lesson goes on with the stories
# that ship with the library, which have 59 characters and their own numbers: 4.08 for 4.17, 4.56 for 4.66, 2.34 for
# 2.48.

# %%
path = Path(os.environ.get("CLEARHEAD_DATA", "")) / "shakespeare.txt"
SHAKESPEARE = path.is_file()
if SHAKESPEARE:
    text = path.read_text(encoding="utf-8")
else:
    text = stories.text(1_000_000)
    print("There is no shakespeare.txt in $CLEARHEAD_DATA: these are the built-in stories, and other numbers.")
print(text[:90])

characters = sorted(set(text))
V = len(characters)
print(f"{len(text):,} characters, {V} distinct:", repr("".join(characters)))
assert not SHAKESPEARE or (len(text), V) == (1_115_394, 65)

# %% [markdown]
# A model computes with numbers, so each character gets one: its place in the sorted list. `stoi` goes from string to
# integer, `itos` back. That is a whole tokenizer, and a good one loses nothing.

# %%
stoi = {character: number for number, character in enumerate(characters)}
itos = dict(enumerate(characters))


def encode(string):
    return [stoi[character] for character in string]


def decode(ids):
    return "".join(itos[int(number)] for number in ids)


print(encode("the king"))
assert decode(encode("the king")) == "the king"

data = torch.tensor(encode(text))
n_train = int(0.9 * len(data))
train, val = data[:n_train], data[n_train:]  # the last tenth is never trained on
print(f"{len(train):,} characters to train on, {len(val):,} held out")
assert not SHAKESPEARE or (len(train), len(val)) == (1_003_854, 111_540)

# %% [markdown]
# The cut is at one place, not at random characters. Neighbors in a text say a lot about each other; held-out characters
# scattered through the training text would be half known already.
#
# ## A batch, and its shift by one
#
# A language model reads a piece of text and predicts, at each character, the next one. So the targets are the inputs,
# moved by one. One window of `T` characters holds `T` examples.

# %%
T, B = 8, 4  # block_size and batch_size


def get_batch(ids, batch_size, block_size):
    starts = torch.randint(len(ids) - block_size, (batch_size,))
    inputs = torch.stack([ids[start : start + block_size] for start in starts])
    targets = torch.stack([ids[start + 1 : start + block_size + 1] for start in starts])
    return inputs, targets  # both (B, T)


inputs, targets = get_batch(train, B, T)
for t in range(4):
    print(f"after {decode(inputs[0, : t + 1])!r} comes {decode(targets[0, t : t + 1])!r}")
assert torch.equal(inputs[:, 1:], targets[:, :-1])

# %% [markdown]
# The end of the text is where one is easily off by one. `torch.randint(n, ...)` never draws `n` itself. How many starts
# may there be? A window needs `T` inputs *and* one character more, the target of its last input: $n - T$ starts. Let us
# try all of them on a text of 20 characters, with one start too few, the right number, and one too many.

# %%
short = torch.arange(20)
for n_starts in (20 - T - 1, 20 - T, 20 - T + 1):
    windows = [short[start + 1 : start + T + 1] for start in range(n_starts)]
    print(
        f"{n_starts} starts: shortest window of targets {min(map(len, windows))}, "
        f"last character is a target: {any(19 in window for window in windows)}"
    )

targets_of_last = short[20 - T :][1:]  # one start too many
assert len(targets_of_last) == T - 1
print(f"windows of 128 in the training text: {len(train):,} - 128 = {len(train) - 128:,}")
assert not SHAKESPEARE or len(train) - 128 == 1_003_726

# %% [markdown]
# One too few never teaches the last character. One too many gives a window that is a target short, and `torch.stack`
# stops, but only in the one batch of many thousands that draws it. (A tutorial prints 1,003,726 as the number of
# characters it trains on. It is this number of *windows*.)
#
# The library does this in one place, and the batch of a step is a function of the seed and the step alone, so that a
# training can be resumed without remembering where it was. The shift is the same.

# %%
batch = training_batch(train.numpy(), block_size=T, batch_size=B, seed=1, step=0)
assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
again = training_batch(train.numpy(), block_size=T, batch_size=B, seed=1, step=0)
assert torch.equal(batch.inputs, again.inputs)

# %% [markdown]
# ## The table, and its loss before training
#
# The model is a table of V x V numbers. Row $i$ holds the *logits* of what follows character $i$; softmax makes them
# probabilities. The loss of one prediction is minus the logarithm of the probability that the right character got. It
# is counted in *nats*; `F.cross_entropy` averages it.

# %%
table = torch.nn.Embedding(V, V)
logits = table(inputs)  # (B, T) -> (B, T, V)
print("logits", tuple(logits.shape))

by_hand = -logits.softmax(-1).gather(-1, targets[..., None]).log().mean()
loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
torch.testing.assert_close(by_hand, loss)
print(f"loss of one small batch: {loss:.2f}")

# %% [markdown]
# A batch of 32 characters is a lottery. For a table the loss over the *whole* text is easy to have: count how often
# character $j$ follows character $i$, and weigh each entry with its count.

# %%


def count_pairs(ids):
    """How often each character follows each: (V, V)."""
    return torch.bincount(ids[:-1] * V + ids[1:], minlength=V * V).view(V, V).double()


def loss_of(logits, pairs):
    """Mean loss of a (V, V) table of logits over all pairs of a text."""
    return float(-(pairs * logits.double().log_softmax(-1)).sum() / pairs.sum())


train_pairs, val_pairs = count_pairs(train), count_pairs(val)
with torch.no_grad():
    direct = F.cross_entropy(table(train[:-1]), train[1:])
torch.testing.assert_close(float(direct), loss_of(table.weight.detach(), train_pairs), rtol=1e-4, atol=1e-4)

torch.manual_seed(1337)  # a seed that many people have typed
unit = torch.nn.Embedding(V, V).weight.detach()
unit_loss = loss_of(unit, train_pairs)
small_loss = loss_of(0.02 * unit, train_pairs)
print(f"a table of unit-normal numbers: {unit_loss:.2f}")
print(f"the same table, times 0.02:     {small_loss:.4f}   ln {V} = {math.log(V):.4f}")
assert not SHAKESPEARE or abs(unit_loss - 4.73) < 0.005
assert not SHAKESPEARE or abs(small_loss - 4.17) < 0.01
assert abs(small_loss - math.log(V)) < 0.005

# %% [markdown]
# Two numbers that people meet in tutorials: **4.73** and **4.17**. Why?
#
# A table of nearly equal logits gives every character the probability $1/V$, and the loss is $-\ln(1/V) = \ln V$. With
# Shakespeare's 65 characters that is 4.17. A fresh model that starts *above* $\ln V$ has opinions before it has seen
# anything.
#
# `nn.Embedding` starts with unit-normal numbers, and these are opinions. The loss is $\ln \sum_j e^{z_j}$ minus the
# logit of the right character. The second is 0 on average. The first is larger than $\ln V$, because the exponential
# rewards large logits more than it punishes small ones: the mean of $e^z$ is $e^{1/2}$, not 1. So about $\ln V + 1/2$;
# since $V$ is finite, a little less: $(e - 1)/2V$ less. With 65 characters that makes 4.66 and not 4.73! Is 4.73 then
# something else? Draw a few hundred tables.

# %%
expected = math.log(V) + 1 / 2 - (math.e - 1) / (2 * V)
draws = torch.tensor([loss_of(torch.randn(V, V), train_pairs) for _ in range(300)])
print(f"ln V + 1/2 - (e - 1)/2V = {expected:.3f}")
print(f"300 unit-normal tables: mean {draws.mean():.3f}, deviation {draws.std():.3f}")
print(f"the luckiest has {draws.min():.2f}, the unluckiest {draws.max():.2f}")
assert abs(draws.mean() - expected) < 4 * draws.std() / math.sqrt(len(draws)) + 0.005
assert abs(unit_loss - expected) < 2 * draws.std()

# %% [markdown]
# 4.73 is the luck of one seed, well inside the spread; the number to expect is 4.66. The spread is wide because the
# text uses few of the table's entries often. A space after an `e` is one entry, and its one random logit counts for
# thousands of characters.
#
# The library draws tables with a deviation of 0.02, so that a fresh loss of $\ln V$ is a *test* that every model must
# pass. Same table, same numbers:

# %%
model = ch.BigramLM(ch.ModelConfig(architecture="bigram", vocab_size=V, block_size=T))
torch.testing.assert_close(loss_of(model.embedding.weight.detach(), train_pairs), math.log(V), rtol=0.02, atol=0)
with torch.no_grad():
    model.embedding.weight.copy_(table.weight)
torch.testing.assert_close(model(inputs), table(inputs))

# %% [markdown]
# ## Training
#
# Now the loop that every later lesson uses: a batch, a loss, its gradient, a step.

# %%
steps = 5000 if FULL else 1000
table = torch.nn.Embedding(V, V)
optimizer = torch.optim.AdamW(table.parameters(), lr=0.1, weight_decay=0.0, fused=True)
losses = []
for step in range(steps):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * (1 - step / steps)  # large steps first, small ones at the end
    batch = training_batch(train.numpy(), block_size=32, batch_size=64, seed=1, step=step)
    loss = F.cross_entropy(table(batch.inputs).flatten(0, 1), batch.targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

trained = table.weight.detach()
train_loss, val_loss = loss_of(trained, train_pairs), loss_of(trained, val_pairs)
print(f"after {steps} steps: {train_loss:.3f} on the training text, {val_loss:.3f} on the held-out text")

# %% [markdown]
# ## The same number, by counting
#
# Could more steps go lower? No. Take row $i$. Its logits $z$ become probabilities $p = \text{softmax}(z)$, and the
# gradient of the loss at $z_j$ is $p_j - q_j$, where $q_j$ is the share of $j$ among the characters that follow $i$. It
# is zero exactly where $p = q$. So the best table holds the shares that you get by counting, and its loss is known
# without a single step.
#
# One thing to take care of: a pair that never occurred gets probability 0, and the first one in the held-out text costs
# infinitely much. So pretend that every pair occurred once more than it did.

# %%
shares = train_pairs / train_pairs.sum(1, keepdim=True).clamp(min=1)
floor = float(-(train_pairs * shares.clamp(min=1e-300).log()).sum() / train_pairs.sum())
plus_one = (train_pairs + 1) / (train_pairs + 1).sum(1, keepdim=True)
counted_val = loss_of(plus_one.log(), val_pairs)
print(f"training text: counted {floor:.3f}, trained {train_loss:.3f}")
print(f"held-out text: counted {counted_val:.3f}, trained {val_loss:.3f}")
assert floor <= train_loss < floor + 0.02
assert abs(counted_val - val_loss) < 0.03
if SHAKESPEARE:
    assert abs(counted_val - 2.48) < 0.005
    assert abs(floor - 2.45) < 0.005

with torch.enable_grad():  # the gradient is probabilities minus shares
    z = torch.randn(V, dtype=torch.float64, requires_grad=True)
    row = stoi["e"]
    (-(shares[row] * z.log_softmax(-1)).sum()).backward()
torch.testing.assert_close(z.grad, z.detach().softmax(-1) - shares[row])

# %% [markdown]
# **2.48** is what everybody gets on held-out Shakespeare, and it is no achievement of the optimizer: it is a property
# of the text. Below you see the training walk from $\ln V + 1/2$ down to the line that counting has drawn.

# %%
figure, axis = plt.subplots(figsize=(7, 3.6))
axis.plot(losses, linewidth=0.8, label="training batches")
axis.axhline(math.log(V), color="gray", linestyle="--", label="every character equally likely: ln V")
axis.axhline(floor, color="black", linestyle=":", label="counting")
axis.set(xlabel="step", ylabel="loss (nats per character)", title="A table learns what counting knows")
axis.set_xlim(0, 400)
axis.legend()
plt.show()

# %% [markdown]
# And the table itself, the probabilities that it learned, for the small letters. Look at the row of `q`.

# %%
letters = [stoi[character] for character in "abcdefghijklmnopqrstuvwxyz"]
probabilities = trained.softmax(-1)
figure, axis = plt.subplots(figsize=(6.4, 5.6))
picture = axis.imshow(probabilities[letters][:, letters], cmap="Blues", vmin=0, vmax=0.5)
axis.set_xticks(range(26), [itos[number] for number in letters])
axis.set_yticks(range(26), [itos[number] for number in letters])
axis.set(xlabel="next character", ylabel="this character", title="What follows what")
figure.colorbar(picture, label="probability (0.5 and more are dark)")
plt.show()
if "q" in stoi and train_pairs[stoi["q"]].sum() > 100:
    print(f"after q comes u with probability {probabilities[stoi['q'], stoi['u']]:.2f}")
    assert probabilities[stoi["q"], stoi["u"]] > 0.9

# %% [markdown]
# ## It writes
#
# To write, look up the last character's row, draw the next character, and go on from there. Before training and after:

# %%


def write(logits, length, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = [stoi["\n"]]
    for _ in range(length):
        ids.append(int(torch.multinomial(logits[ids[-1]].softmax(-1), 1, generator=generator)))
    return decode(ids[1:])


print(write(unit, 80, seed=1), "\n---")
print(write(trained, 300, seed=1))

# %% [markdown]
# It is gibberish, but of a new kind: words of about the right length, vowels between consonants, in Shakespeare names
# in capitals before a colon. One character of context buys all of that. What is missing needs more context, and that
# is what attention brings.
#
# How much is missing? Nobody knows the exact entropy of Shakespeare. The built-in stories come from a grammar, so
# theirs is known: no model of any size can be better.

# %%
story_ids = torch.tensor([ord(character) for character in stories.text(400_000)])
V_story = 128
story_pairs = torch.bincount(story_ids[:-1] * V_story + story_ids[1:]).double()
followed = torch.bincount(story_ids[:-1], minlength=V_story)[story_ids[:-1]].double()
counts_here = story_pairs[story_ids[:-1] * V_story + story_ids[1:]]
story_loss = float(-(counts_here / followed).log().mean())
story_floor = stories.entropy_per_character()
print(f"stories: a bigram table reaches {story_loss:.2f} nats per character; {story_floor:.2f} are possible")
assert story_floor < 0.5 * story_loss

# %% [markdown]
# ## Exercises
#
# **1.** A table from the last *two* characters has $V^2$ rows. Count it, smoothed with $+\alpha$ instead of $+1$. How
# low does the held-out loss go, and what does the training loss say?

# %% tags=["hide-cell"]
triples = torch.bincount((train[:-2] * V + train[1:-1]) * V + train[2:], minlength=V**3).view(V * V, V).double()
held_out = torch.bincount((val[:-2] * V + val[1:-1]) * V + val[2:], minlength=V**3).view(V * V, V).double()
for alpha in (1.0, 0.1, 0.01):
    smooth = (triples + alpha) / (triples + alpha).sum(1, keepdim=True)
    trigram_val = float(-(held_out * smooth.log()).sum() / held_out.sum())
    trigram_train = float(-(triples * smooth.log()).sum() / triples.sum())
    print(f"alpha {alpha}: training {trigram_train:.3f}, held out {trigram_val:.3f}")
    assert trigram_val < counted_val - 0.3
    assert trigram_val > trigram_train or not SHAKESPEARE
# About 0.4 nats better, and the gap between the two texts is already wider: most rows have few examples. Each further
# character multiplies the rows by V. Counting ends here; a model must share what it learns between contexts.

# %% [markdown]
# **2.** Predict the fresh loss of a table whose numbers have deviation $s$, for $s = 0.5, 1, 2$, then measure. Where
# does the prediction fail, and why?

# %% tags=["hide-cell"]
for s in (0.5, 1.0, 2.0):
    measured = sum(loss_of(s * torch.randn(V, V), train_pairs) for _ in range(100)) / 100
    first = math.log(V) + s**2 / 2
    second = first - (math.exp(s**2) - 1) / (2 * V)
    print(f"s = {s}: ln V + s^2/2 = {first:.3f}, with the correction {second:.3f}, measured {measured:.3f}")
    assert measured < first + 0.05
    assert abs(measured - second) < 0.05 or s > 1
# The first is an upper bound: the mean of ln(...) is at most ln of the mean, and e^(s^2/2) is the mean of e^z. It is
# reached by long rows. At s = 2 a row of 65 numbers is ruled by its one or two largest, the usual row has none of the
# rare giants that make up the mean, and the correction, which assumes a small spread, takes too much.

# %% [markdown]
# **3.** Forget the shift: train with `targets = inputs`. What does the loss do, what does the model write, and what
# rule do you take from it?

# %% tags=["hide-cell"]
wrong = torch.nn.Embedding(V, V)
optimizer = torch.optim.AdamW(wrong.parameters(), lr=0.1, weight_decay=0.0, fused=True)
for step in range(200):
    ids = training_batch(train.numpy(), block_size=32, batch_size=64, seed=1, step=step).inputs
    loss = F.cross_entropy(wrong(ids).flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
print(repr(write(wrong.weight.detach(), 40, seed=1)))
assert loss < 0.05 < floor
assert loss_of(wrong.weight.detach(), val_pairs) > counted_val + 1
# It learned the identity: every character follows itself. A loss below the floor that you know is not a triumph, it is
# a bug report. For a table the floor is the count; for the stories it is the entropy that the library prints.

# %% [markdown]
# ## Where this stands in the house
#
# - [windows](../src/clearhead/data/windows.py): batches, the one place where a target is the token after its input.
# - [bigram_lm](../src/clearhead/models/bigram_lm.py): this model; `clearhead train my.txt --preset bigram` trains it.
# - [initialization](../src/clearhead/models/initialization.py): how every tensor starts, and why the fresh loss is ln
#   V.
# - [characters](../src/clearhead/data/tokenizers/characters.py): `stoi` and `itos`, fast.
# - In [the studio](../docs/studio.md), train the preset `bigram` on a text of yours and watch its curve stop.
#
# Next: [the averaging trick](02_the_averaging_trick.py).
