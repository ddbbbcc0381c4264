# %% [markdown]
# # 4. Where am I
#
# Attention works on a set (lesson 2): shuffle the tokens, and the outputs are the same, shuffled. So a Transformer has
# to be told where its tokens stand. There are three places to do it: *add* something to the embedding, *rotate* queries
# and keys, or *bias* the scores. This lesson builds five ways, tests what each one knows about order, and then reads
# texts longer than any in training. One of them needs nothing at all, and you will see how it cheats.

# %%
import math
import os

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

import clearhead as ch
from clearhead.parts import POSITIONS, PositionOptions, attend

FULL = os.environ.get("SIZE") == "full"
torch.manual_seed(1)
torch.set_printoptions(precision=3, sci_mode=False)

# %% [markdown]
# ## The order test
#
# A model without positions and without a mask cannot tell *man bites dog* from *dog bites man*: the same outputs, in
# another order. Any way of positions has to break this symmetry. Test two reorderings: the text reversed, and two of
# its words swapped.

# %%
text = torch.tensor([[1, 2, 3, 4]])
reorderings = {"reversed": torch.tensor([3, 2, 1, 0]), "swapped": torch.tensor([1, 0, 2, 3])}
for kind in POSITIONS:
    config = ch.ModelConfig(
        architecture="encoder", vocab_size=8, block_size=16, n_layers=1, n_heads=4, d_model=32, positions=kind
    )
    model = ch.EncoderLM(config)
    with torch.no_grad():
        for parameter in model.parameters():  # larger than fresh weights, so that effects are easy to see
            parameter.add_(0.3 * torch.randn(parameter.shape))
        moved = {
            name: (model(text)[:, order] - model(text[:, order])).abs().max().item()
            for name, order in reorderings.items()
        }
    print(f"{kind:10}", ", ".join(f"{name}: {difference:.0e}" for name, difference in moved.items()))
    assert (moved["swapped"] < 1e-4) == (kind == "none")
    assert (moved["reversed"] < 1e-4) == (kind in ("none", "alibi"))

# %% [markdown]
# There is a surprise in the table. ALiBi, which you meet below, knows the *distance* of two tokens, but not the side:
# an encoder with ALiBi cannot tell a text from its mirror image. In a decoder the causal mask gives the side away.
#
# ## Sinusoids
#
# The first Transformer added waves to the embeddings. Dimensions come in pairs, a sine and a cosine of the same angle;
# the angle of pair $i$ at position $t$ is $t / 10000^{2i/D}$. So the first pair turns by one radian per token, and each
# later pair more slowly.

# %%
D, length = 32, 100
angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, D, 2) / D)  # (T, D/2)
waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # (T, D/2, 2) -> (T, D)

options = PositionOptions(d_model=D, n_heads=4, block_size=length, rotary_width=8)
ours = POSITIONS["sinusoidal"](options).add(torch.zeros(1, length, D), range(length))[0]
torch.testing.assert_close(waves, ours, atol=1e-5, rtol=0)

figure, axis = plt.subplots(figsize=(7, 3.2))
for dimension, style in enumerate(("-", "--", "-", "--")):
    axis.plot(waves[:, dimension], style, label=f"dimension {dimension}")
axis.set(xlabel="position", ylabel="added to the embedding", title="The first four dimensions")
axis.legend(loc="upper right")
plt.show()

# %% [markdown]
# Two things are neat about them. Every position has the same length, $\sqrt{D/2}$, since $\sin^2 + \cos^2 = 1$. And the
# product of two positions depends on their distance alone, because $\cos a \cos b + \sin a \sin b = \cos(a - b)$.

# %%
torch.testing.assert_close(waves.norm(dim=-1), torch.full((length,), math.sqrt(D / 2)))
products = waves @ waves.T
for distance in (0, 1, 5, 20):
    diagonal = products.diagonal(distance)
    print(f"distance {distance:2}: product {diagonal.mean():.2f}, the same everywhere to {diagonal.std():.0e}")
    assert diagonal.std() < 1e-3

# %% [markdown]
# A **learned** table is simpler: one vector per position, trained like any other weight. It has as many rows as you
# gave it, and a row that training never used is still what it was drawn as. The library refuses a text longer than the
# table, instead of counting beyond its end.

# %%
learned = ch.DecoderLM(ch.ModelConfig(vocab_size=8, block_size=16, n_layers=1, n_heads=4, d_model=32))
try:
    learned(torch.zeros(1, 17, dtype=torch.long))
    refused = False
except ch.ClearheadError as error:
    refused = True
    print(error)
assert refused

# %% [markdown]
# ## Rotary
#
# Rotary positions take the second neat thing and put it where it belongs, into the score. Take the numbers of a query
# in pairs and turn each pair by the angle of its position; do the same with the keys. A product of two turned pairs
# depends on the difference of the angles, so the score depends on the content and on the distance, on nothing else.

# %%
K = 8
frequencies = 10_000 ** (-torch.arange(0, K, 2) / K)  # (K/2,)


def rotate(x, positions):
    """Turn the pairs (i, i + K/2) of x, (T, K)."""
    angles = positions[:, None] * frequencies
    first, second = x.chunk(2, dim=-1)
    return torch.cat(
        (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), dim=-1
    )


query, key = torch.randn(1, K), torch.randn(1, K)
for here, there in ((3, 1), (13, 11), (93, 91), (93, 90)):
    score = (rotate(query, torch.tensor([here])) * rotate(key, torch.tensor([there]))).sum()
    print(f"query at {here:2}, key at {there:2}: score {score:.4f}")
near = (rotate(query, torch.tensor([3])) * rotate(key, torch.tensor([1]))).sum()
far = (rotate(query, torch.tensor([93])) * rotate(key, torch.tensor([91]))).sum()
torch.testing.assert_close(near, far, atol=1e-5, rtol=1e-5)

x = torch.randn(1, 1, 10, K)  # (B, H, T, K)
house = POSITIONS["rope"](options).rotate(range(10), x.device)
torch.testing.assert_close(house(x)[0, 0], rotate(x[0, 0], torch.arange(10)))
torch.testing.assert_close(house(x).norm(dim=-1), x.norm(dim=-1))  # turning changes no length

# %% [markdown]
# Which numbers form a pair? Llama's own code turns neighbors $(0, 1), (2, 3)$; Hugging Face and this library turn $(0,
# K/2), (1, K/2+1)$. Both are right, and weights of one are wrong in the other until their rows are put in the other
# order. This is one of the most frequent faults of converted models.
#
# ## ALiBi and relative biases
#
# One can also leave the tokens alone and change the scores. ALiBi subtracts the distance, times a slope of the head:
# $2^{-8/H}, 2^{-16/H}, \ldots$. A steep head sees its neighbors only, a flat one the whole text.

# %%
slopes = torch.tensor([2.0 ** (-8 * (head + 1) / 4) for head in range(4)])
distance = torch.arange(6)[:, None] - torch.arange(6)
alibi = POSITIONS["alibi"](options).bias(range(6), range(6), x.device)
torch.testing.assert_close(alibi, -slopes[:, None, None] * distance.abs())
print("slopes", slopes.tolist())
print("bias of the first head, last query", alibi[0, -1])

# %% [markdown]
# T5 *learns* its biases, one for each head and class of distance. Near distances have a class each, far ones share, and
# everything beyond the last boundary is one class. So nothing is ever outside the table.

# %%
relative = POSITIONS["relative"](
    PositionOptions(d_model=D, n_heads=1, block_size=200, rotary_width=8, relative_buckets=16, relative_max_distance=64)
)
with torch.no_grad():
    relative.weight.copy_(torch.arange(16.0)[:, None])  # each class says its own number
classes = relative.bias(range(199, 200), range(200), x.device)[0, 0].flip(0).detach()  # by distance, from 0
print("distance 0 to 12:", classes[:13].int().tolist())
print("distance 16, 32, 63, 64, 150:", [int(classes[distance]) for distance in (16, 32, 63, 64, 150)])
assert classes[:8].tolist() == list(range(8))
assert classes[64] == classes[150] == 15

# %% [markdown]
# ## Nothing at all
#
# A *causal* decoder without positions can tell order. The mask gives it away: the first token sees one key, the fifth
# sees five. Take a head whose scores are all zero. It averages the values of all it sees. If the first token of the
# text has value 1 and all others 0, the average at position $t$ is $1/(t+1)$. That is a position, written by the mask.

# %%
T = 6
value = torch.zeros(1, 1, T, 1)
value[0, 0, 0] = 1
counted = attend(torch.zeros(1, 1, T, 8), torch.zeros(1, 1, T, 8), value, mask="causal")[0, 0, :, 0]
print("1 / output:", (1 / counted).tolist())
torch.testing.assert_close(1 / counted, torch.arange(1.0, T + 1))

# %% [markdown]
# One layer can count. Can it tell in which *order* the earlier tokens came? No: the last token's output is a sum over
# the set of what it sees. Two layers can, because in the first layer each earlier token has counted what came before
# *it*.

# %%
torch.manual_seed(3)
for n_layers in (1, 2):
    config = ch.ModelConfig(vocab_size=8, block_size=16, n_layers=n_layers, n_heads=4, d_model=32, positions="none")
    model = ch.DecoderLM(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
        text, swapped = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[3, 1, 4, 2, 5]])
        moved = (model(text)[0, -1] - model(swapped)[0, -1]).abs().max().item()
    print(f"{n_layers} causal layers without positions: another order moves the last logits by {moved:.1e}")
    assert (moved < 1e-10) == (n_layers == 1)

# %% [markdown]
# ## A task that needs to know where, and longer texts
#
# Which of them works? A task where nothing but order matters: the text is random tokens, and the target at each place
# is the token *two places back*. Train on short texts, then test on texts three times as long.

# %%
V, BACK = 8, 2
T, steps, width = (32, 400, 64) if FULL else (16, 100, 32)


def train_model(positions, **options):
    """The share of right answers at each place of texts of 3 T tokens, after training on T."""
    config = ch.ModelConfig(
        vocab_size=V,
        block_size=3 * T,
        n_layers=2,
        n_heads=4,
        d_model=width,
        positions=positions,
        relative_buckets=16,
        relative_max_distance=T,
        tie_embeddings=False,
        **options,
    )
    model = ch.DecoderLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    draw = torch.Generator().manual_seed(1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * min(1, (step + 1) / 20) * (1 - step / steps)
        ids = torch.randint(V, (32, T), generator=draw)
        loss = F.cross_entropy(model(ids)[:, BACK:].flatten(0, 1), ids[:, :-BACK].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        ids = torch.randint(V, (256, 3 * T), generator=draw)
        return (model(ids)[:, BACK:].argmax(-1) == ids[:, :-BACK]).float().mean(0)


kinds = {kind: {"positions": kind} for kind in POSITIONS}
kinds["sinusoidal, scaled"] = {"positions": "sinusoidal", "scale_embedding": True}
right = {}
for name, settings in kinds.items():
    right[name] = train_model(**settings)
    inside, outside = right[name][: T - BACK].mean(), right[name][T:].mean()
    print(f"{name:18}: right within {T} tokens {inside:5.1%}, beyond {outside:5.1%} (guessing: {1 / V:.1%})")

# %%
figure, axis = plt.subplots(figsize=(7.5, 3.8))
styles = ("-", "--", "-.", ":", "-", "--", "-.")
for (name, share), style in zip(right.items(), styles, strict=True):
    axis.plot(range(BACK, 3 * T), share, style, label=name)
axis.axvline(T, color="gray", linewidth=0.8)
axis.annotate("longest text in training", (T + 0.5, 0.02))
axis.set(xlabel="place in the text", ylabel="share of right answers", title="Two places back", ylim=(0, 1.05))
axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
figure.tight_layout()
plt.show()


def inside(name):
    return float(right[name][: T - BACK].mean())


def beyond(name):
    return float(right[name][T:].mean())


assert inside("rope") > 0.9
assert beyond("rope") > beyond("learned") + 0.2  # distances stay what they were, table rows do not
assert beyond("learned") < 2 / V
assert abs(beyond("alibi") - inside("alibi")) < 0.15
assert not FULL or inside("none") > 1.2 / V  # the mask alone says something about order
assert inside("none") < inside("rope")

# %% [markdown]
# Read the picture from the left. A learned table solves the task within the texts it was trained on, and guesses behind
# them: those rows were never trained. Rotary positions know distances, and *two back* is the same distance at any
# place, so they go on, though less surely with every place: more keys compete for the weight. ALiBi learns this task
# more slowly, since it can only fade with distance and not point at one; but what it has learned holds at any length.
# Without positions the model does poorly: it has to count, and counting gets less precise as the text grows.
#
# And the plain sinusoids? They can do at least what a learned table can, but here they learn more slowly: after 100
# steps (the test size of this lesson) they still guess, after 400 (the full size) they are right within the training
# length. The waves have a size of about 0.7 per number, and fresh embeddings have 0.02: at first the model sees
# positions, and hardly any tokens. The first Transformer multiplied its embeddings by $\sqrt{D}$, the option
# `scale_embedding`, and the last line of the table is what that gives. Programs that copy the sinusoids without it
# start with this handicap.
#
# On real text the differences are smaller, since most of what the next token needs is near. What to take home: with
# positions in a table, the longest training text is the longest text.
#
# ## Exercises
#
# **1.** A sinusoid at position $t + k$ is a fixed linear map of the one at $t$. Build that map for $k = 7$ and test it.

# %% tags=["hide-cell"]
shift = torch.zeros(D, D)
for pair in range(D // 2):
    angle = 7 / 10_000 ** (2 * pair / D)
    block = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    shift[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = block  # of (sine, cosine)
torch.testing.assert_close(waves[:-7] @ shift.T, waves[7:], atol=1e-4, rtol=0)
# So a head could learn "seven back" as a matrix. Rotary positions apply that matrix themselves.

# %% [markdown]
# **2.** Turn neighbors $(0, 1), (2, 3), \ldots$ instead of $(i, i + K/2)$. Show that it gives the same scores if the
# rows of queries and keys are put in another order, and other scores if they are not.

# %% tags=["hide-cell"]


def rotate_neighbors(x, positions):
    angles = positions[:, None] * frequencies
    first, second = x[..., 0::2], x[..., 1::2]
    turned = (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
    return torch.stack(turned, dim=-1).flatten(-2)


places = torch.arange(10)
queries, keys = torch.randn(10, K), torch.randn(10, K)
order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # neighbors of the new layout are halves of the old one
scores = rotate(queries, places) @ rotate(keys, places).T
same = rotate_neighbors(queries[:, order], places) @ rotate_neighbors(keys[:, order], places).T
different = rotate_neighbors(queries, places) @ rotate_neighbors(keys, places).T
torch.testing.assert_close(same, scores)
assert (different - scores).abs().max() > 0.1
assert torch.allclose(different.diagonal(), scores.diagonal(), atol=1e-5)  # at distance 0 nothing is turned
# Since scores at distance 0 agree and near ones nearly do, a model converted wrongly still writes half sensibly.

# %% [markdown]
# **3.** A text of 5 tokens is padded on the *left* to 8, and positions are counted from the left edge. Which kinds of
# positions give other logits for it, and what mends it?

# %% tags=["hide-cell"]
ids, padded = torch.tensor([[3, 1, 4, 1, 5]]), torch.tensor([[0, 0, 0, 3, 1, 4, 1, 5]])
apart = ch.positions_from_lengths(torch.tensor([5]), 8, side="left")
print("positions", apart.tolist())
shifted = torch.tensor([[-1, -1, -1, 3, 4, 5, 6, 7]])  # padding masked, but tokens counted from the edge
for kind in POSITIONS:
    config = ch.ModelConfig(vocab_size=8, block_size=16, n_layers=2, n_heads=4, d_model=32, positions=kind)
    model = ch.DecoderLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
        alone = model(ids)
        torch.testing.assert_close(model(padded, positions=apart)[:, 3:], alone, atol=1e-4, rtol=1e-4)
        moved = (model(padded, positions=shifted)[:, 3:] - alone).abs().max().item()
    print(f"{kind:10} counted from the edge: moved by {moved:.1e}")
    assert (moved > 1e-3) == (kind in ("learned", "sinusoidal"))
# Absolute positions move; those that know distances only do not. The mend is to count from the first token of each row.

# %% [markdown]
# ## Where this stands in the house
#
# - [positions](../src/clearhead/parts/positions.py): all kinds, at three seams: `add`, `rotate`, `bias`.
# - [the same in NumPy](../src/clearhead/reference/positions.py), beside its equations.
# - [masks](../src/clearhead/parts/masks.py): who may attend to whom is decided by positions.
# - [the faults P01 to P09](../src/clearhead/doctor/catalogue/faults.toml) that the doctor finds in positions.
# - In [the studio](../docs/studio.md), the wall of heads shows which head looks one back and which looks far.
#
# Next: [masks](05_masks.py).
