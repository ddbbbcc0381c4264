# %% [markdown]
# # 2. The averaging trick
#
# The table of lesson 1 looked at one character. To look at all that came before, a token needs some summary of its
# past, and the simplest summary is an average. This lesson starts there, makes the average fast, lets the data choose
# the weights, and arrives at attention: nothing but a weighted average whose weights are computed from the tokens.

# %%
import math
import os
import time

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from clearhead.parts import Attention, attend
from clearhead.parts.eager_attention import eager_attention

FULL = os.environ.get("SIZE") == "full"
torch.manual_seed(1)
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## Three ways to average the past
#
# Let `x` hold `B` texts of `T` tokens, a vector of `D` numbers for each. Replace every token by the mean of itself and
# all before it. First as one would say it, with loops.

# %%
B, T, D = 4, 8, 32
x = torch.randn(B, T, D)

by_loop = torch.zeros(B, T, D)
for b in range(B):
    for t in range(T):
        by_loop[b, t] = x[b, : t + 1].mean(dim=0)

# %% [markdown]
# A matrix product is a weighted sum of rows. If row $t$ of the left matrix holds $1/(t+1)$ for every token up to $t$
# and 0 behind it, then its product with `x` is that mean. A small example, three tokens of two numbers:

# %%
lower = torch.ones(3, 3).tril()
weights = lower / lower.sum(1, keepdim=True)
small = torch.tensor([[2.0, 7.0], [6.0, 4.0], [6.0, 5.0]])
print(weights, small, weights @ small, sep="\n")
assert torch.equal((weights @ small)[1], torch.tensor([4.0, 5.5]))
torch.testing.assert_close((weights @ small)[2], small.mean(0))

lower = torch.ones(T, T).tril()
by_product = (lower / lower.sum(1, keepdim=True)) @ x  # (T, T) @ (B, T, D) -> (B, T, D)
torch.testing.assert_close(by_product, by_loop)

# %% [markdown]
# The third way looks like a detour. Start from scores of zero, write $-\infty$ where a token may not look, and take the
# softmax: $e^0 = 1$, $e^{-\infty} = 0$, and dividing by the sum gives the same weights.

# %%
scores = torch.zeros(T, T).masked_fill(lower == 0, -torch.inf)
by_softmax = scores.softmax(-1) @ x
torch.testing.assert_close(by_softmax, by_loop)
print(scores[:4, :4], scores.softmax(-1)[:4, :4], sep="\n")

# %% [markdown]
# All three are equal, but only the third has a place where something can be learned: the zeros. A score says how much
# token $i$ cares about token $j$. All zero means it cares about all of them equally. Let the tokens decide.
#
# ## One head
#
# Each token makes three vectors. Its *query* says what it looks for, its *key* what it offers, its *value* what it
# hands over. The score of token $i$ for token $j$ is the product of query $i$ and key $j$, and the output is the
# average of the values with the softmaxed scores as weights:
#
# $$ \text{out} = \text{softmax}\left(\frac{q k^\top}{\sqrt{d_k}}\right) v $$

# %%
head_size = 16
to_query, to_key, to_value = (nn.Linear(D, head_size, bias=False) for _ in range(3))
q, k, v = to_query(x), to_key(x), to_value(x)  # (B, T, 16) each
scores = q @ k.mT / math.sqrt(head_size)  # (B, T, 16) @ (B, 16, T) -> (B, T, T)
weights = scores.masked_fill(lower == 0, -torch.inf).softmax(-1)
out = weights @ v  # (B, T, T) @ (B, T, 16) -> (B, T, 16)
print(weights[0].detach())
torch.testing.assert_close(weights.sum(-1), torch.ones(B, T))
assert not torch.allclose(weights[0], weights[1])  # every text has weights of its own

# %% [markdown]
# In row 3 you read how the fourth token divides its attention among the first four. Rows are not uniform any more, and
# the second text has other weights: they depend on the data. PyTorch's fused kernel and the library give the same
# numbers. They expect an axis for heads, here of size 1, before time.

# %%
q1, k1, v1 = (part.unsqueeze(1) for part in (q, k, v))  # (B, T, 16) -> (B, 1, T, 16)
torch.testing.assert_close(F.scaled_dot_product_attention(q1, k1, v1, is_causal=True)[:, 0], out)
torch.testing.assert_close(attend(q1, k1, v1, mask="causal")[:, 0], out)
torch.testing.assert_close(eager_attention(q1, k1, v1, mask="causal")[:, 0], out)

# %% [markdown]
# ## Six notes on attention
#
# **1. It is communication on a graph.** Tokens are nodes; an edge says who may listen to whom. The causal mask is one
# graph among many. Here is another, with messages gathered node by node: equal to attention with that mask.

# %%
listens_to = {0: [0], 1: [1, 4], 2: [0, 1, 2], 3: [3], 4: [0, 4]}
graph = torch.zeros(5, 5, dtype=torch.bool)
for node, neighbors in listens_to.items():
    graph[node, neighbors] = True
q5, k5, v5 = q1[:1, :, :5], k1[:1, :, :5], v1[:1, :, :5]
by_node = []
for node, neighbors in listens_to.items():
    scores_here = q[0, node] @ k[0, neighbors].T / math.sqrt(head_size)
    by_node.append(scores_here.softmax(-1) @ v[0, neighbors])
torch.testing.assert_close(attend(q5, k5, v5, mask=graph)[0, 0], torch.stack(by_node))

# %% [markdown]
# **2. There is no space.** Attention works on a set. Shuffle the tokens, and the outputs are the same, shuffled. If
# order shall matter, positions must be put in (lesson 4).

# %%
order = torch.randperm(T)
shuffled = attend(q1[:, :, order], k1[:, :, order], v1[:, :, order])
torch.testing.assert_close(shuffled, attend(q1, k1, v1)[:, :, order])

# %% [markdown]
# **3. Texts in a batch never talk.** Replace the last text of the batch: the others notice nothing.

# %%
other = x.clone()
other[-1] = torch.randn(T, D)
layer = Attention(D, n_heads=2)
assert torch.equal(layer(x, mask="causal")[:-1], layer(other, mask="causal")[:-1])

# %% [markdown]
# **4. An encoder is the same without the mask.** Then the first token hears the last. Change the last token and see who
# notices:

# %%
changed = x.clone()
changed[:, -1] += 1.0
for name, mask in (("decoder", "causal"), ("encoder", None)):
    moved = (layer(changed, mask=mask) - layer(x, mask=mask)).abs().amax(dim=(0, 2)) > 0
    print(f"{name}: outputs that moved {moved.int().tolist()}")
    assert moved.tolist() == ([False] * (T - 1) + [True] if mask else [True] * T)

# %% [markdown]
# **5. Cross-attention takes keys and values from somewhere else.** Queries come from one text, keys and values from
# another, whose length may differ. One output for each query.

# %%
memory = torch.randn(B, 11, D)
print("queries", tuple(x.shape), "memory", tuple(memory.shape), "->", tuple(layer(x, memory).shape))
crossed = attend(q1, to_key(memory).unsqueeze(1), to_value(memory).unsqueeze(1))
assert crossed.shape == (B, 1, T, head_size)
assert layer(x, memory).shape == x.shape

# %% [markdown]
# **6. It is scaled.** That one needs a section of its own.
#
# ## Why divide by the root of the head's size
#
# A score is a sum of $d_k$ products. If queries and keys are independent with deviation 1, each product has variance 1,
# variances add up, and the sum has deviation $\sqrt{d_k}$. Measure it at two sizes.

# %%
for size in (32, 128):
    queries, keys = torch.randn(1000, size), torch.randn(1000, size)
    raw = queries @ keys.T
    scaled = raw / math.sqrt(size)
    largest = [scores.softmax(-1).amax(-1).mean() for scores in (raw, scaled)]  # of each query's weights
    print(f"d_k {size:3}: deviation {raw.std():5.2f} (root {math.sqrt(size):5.2f}), scaled {scaled.std():.2f}")
    print(f"         the largest of 1,000 weights, on average {largest[0]:.2f}, scaled {largest[1]:.2f}")
    assert abs(raw.std() / math.sqrt(size) - 1) < 0.02
    assert abs(scaled.std() - 1) < 0.02

# %% [markdown]
# What is wrong with large scores? Softmax of large numbers is a hard choice. At $d_k = 128$ a score of 14 is nothing
# special, a bit more than one deviation. Beside seven zeros it takes everything:

# %%
example = torch.tensor([14.0, 0, 0, 0, 0, 0, 0, 0])
print("softmax of (14, 0, ...)           ", example.softmax(0))
print("softmax of (14, 0, ...)/sqrt(128) ", (example / math.sqrt(128)).softmax(0))
hard = example.softmax(0)
print(f"in full: {hard[0]:.7f}, and {hard[1]:.1e} for each of the others")
assert hard[0] > 0.99999
assert (
    abs(float((example / math.sqrt(128)).softmax(0)[0]) - math.exp(14 / 128**0.5) / (math.exp(14 / 128**0.5) + 7))
    < 1e-6
)

slope_hard = hard[0] * (1 - hard[0])  # of the first weight by its own score
soft = (example / math.sqrt(128)).softmax(0)
print(f"slope of the first weight: {slope_hard:.1e} unscaled, {soft[0] * (1 - soft[0]):.2f} scaled")
assert slope_hard < 1e-5

# %% [markdown]
# The slope $p(1-p)$ is what the gradient has to pass. Unscaled, the head has made up its mind before training begins,
# and a gradient of a few millionths is all that could change it. The picture shows a head of 128 with and without the
# scale.

# %%
queries, keys = torch.randn(24, 128), torch.randn(24, 128)
figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.6))
for axis, divisor, title in zip(
    axes, (1.0, math.sqrt(128)), ("scores as they are", "divided by sqrt(128)"), strict=True
):
    picture = axis.imshow((queries @ keys.T / divisor).softmax(-1), cmap="Blues", vmin=0, vmax=1)
    axis.set(title=title, xlabel="key", ylabel="query")
figure.colorbar(picture, ax=axes, label="weight")
plt.show()

# %% [markdown]
# ## Heads cost nothing
#
# One head can attend to one thing at a time. So the width $D$ is cut into `H` heads of $D/H$ numbers, each attends on
# its own, and the results are put side by side again. Does it cost more? Each head's product of scores costs $2 T^2
# D/H$ operations, and there are `H` of them. `H` cancels out.

# %%
wide = torch.randn(1, 128, 256)
flops = {}
for n_heads in (1, 2, 4, 8, 16):
    layer = Attention(256, n_heads)
    with FlopCounterMode(display=False) as counter:
        queries, keys, values = (
            part(wide).unflatten(-1, (n_heads, -1)).transpose(1, 2) for part in (layer.query, layer.key, layer.value)
        )
        heads = eager_attention(queries, keys, values)  # (B, H, T, K)
        by_parts = layer.output(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(by_parts, layer(wide))
    flops[n_heads] = counter.get_total_flops()
    print(
        f"{n_heads:2} heads: {flops[n_heads]:,} operations, {sum(p.numel() for p in layer.parameters()):,} parameters"
    )
projections, products = 4 * 2 * 128 * 256 * 256, 2 * 2 * 128 * 128 * 256
print(f"by hand: {projections:,} in four projections + {products:,} in two products")
assert set(flops.values()) == {projections + products}

# %% [markdown]
# What does grow with `H` is the number of weights, `T` x `T` *for each head*, and the softmaxes over them.
#
# ## One map instead of three
#
# Many models compute queries, keys and values by one map of width $3D$ and cut the result in three. It is the same
# computation: stack the three matrices.

# %%
D = 384
three = [nn.Linear(D, D, bias=False) for _ in range(3)]
fused = nn.Linear(D, 3 * D, bias=False)
with torch.no_grad():
    fused.weight.copy_(torch.cat([part.weight for part in three]))
tokens = torch.randn(16, 64, D)
for part, piece in zip(three, fused(tokens).chunk(3, dim=-1), strict=True):
    torch.testing.assert_close(piece, part(tokens))


def seconds(function, repeats):
    """The fastest of several calls: what else the machine does only makes a call slower."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


repeats = 300 if FULL else 50
with torch.no_grad():
    for name, batch in (("a batch of 16 x 64 tokens", tokens), ("a single token", tokens[:1, :1])):
        apart = seconds(lambda batch=batch: [part(batch) for part in three], repeats)
        together = seconds(lambda batch=batch: fused(batch), repeats)
        print(f"{name}: three maps {apart * 1e6:.0f} us, one {together * 1e6:.0f} us, ratio {apart / together:.2f}")

# %% [markdown]
# Same parameters, same operations; the saving is in the calls. It is nearly nothing where the products are large, and
# shows where they are tiny, as in generation of one token at a time. This library keeps three maps: they are easier to
# read, to initialize and to carry to other programs.
#
# ## What T x T costs
#
# There is one weight for each pair of tokens. Ten times the length is a hundred times the weights.

# %%
for length in (128, 4096):
    entries = length**2
    print(f"T = {length:5,}: {entries:10,} weights per head and text, {entries * 4 / 2**20:7.4g} MiB in float32")
assert 128**2 * 4 == 64 * 2**10
assert 4096**2 * 4 == 64 * 2**20

figure, axis = plt.subplots(figsize=(6, 3.4))
lengths = [2**exponent for exponent in range(7, 16)]
axis.loglog(lengths, [length**2 * 4 * 12 for length in lengths], "o-", label="weights of 12 heads")
axis.loglog(lengths, [length * 768 * 4 for length in lengths], "s-", label="one activation, D = 768")
axis.set(xlabel="tokens", ylabel="bytes in float32", title="Weights grow with the square, activations do not")
axis.legend()
plt.show()

# %% [markdown]
# The fused kernel never stores these weights. It walks over the keys in pieces and keeps running sums, so its memory
# grows with `T` alone; the *work* still grows with the square.
#
# ## Attention always returns something
#
# Softmax has no way to say "nothing here fits". Take a query that hates every key: all scores are -100. Its weights are
# those of a query that likes all equally, since softmax only sees differences.

# %%
hates = torch.full((6,), -100.0).softmax(0)
likes = torch.full((6,), 3.0).softmax(0)
print(hates, likes, sep="\n")
torch.testing.assert_close(hates, likes)

needle, hay = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 6, 16)
values = torch.randn(1, 1, 6, 16)
answer = attend(needle, hay, values)[0, 0, 0]
assert answer.norm() > 0
assert (answer <= values[0, 0].amax(0)).all()  # an average lies among the values
assert (answer >= values[0, 0].amin(0)).all()

# %% [markdown]
# So a head that finds nothing useful has to put its weight somewhere. Trained models learn a place for it, often the
# first token, whose value is then small. When you see a head that stares at the first token, it may simply be idle.
#
# ## Exercises
#
# **1.** Write the exponential average, $y_t = a\,y_{t-1} + (1-a)\,x_t$ with $y_{-1} = 0$, as one matrix product, and as
# softmax of scores. What is still missing in the softmax form?

# %% tags=["hide-cell"]
a, n = 0.8, 6
signal = torch.randn(n, 3, dtype=torch.float64)
state, walked = torch.zeros(3, dtype=torch.float64), []
for value in signal:
    state = a * state + (1 - a) * value
    walked.append(state)
distance = torch.arange(n)[:, None] - torch.arange(n)
matrix = torch.where(distance >= 0, (1 - a) * a ** distance.clamp(min=0).double(), 0.0)
torch.testing.assert_close(matrix @ signal, torch.stack(walked))
scores = (distance * math.log(a)).double().masked_fill(distance < 0, -torch.inf)
as_softmax = scores.softmax(-1)
print(as_softmax.sum(-1), matrix.sum(-1), sep="\n")
torch.testing.assert_close(as_softmax, matrix / matrix.sum(-1, keepdim=True))
# A score that falls by a constant for each step back is this average. The softmax form makes the weights sum to 1, as
# the walk does only after many steps. A bias that falls with distance is ALiBi: you meet it in lesson 4.

# %% [markdown]
# **2.** Somebody scales by $1/\sqrt{D}$, the model's width, instead of the head's. With 8 heads, what do the weights
# look like at the start, and why does training not fail?

# %% tags=["hide-cell"]
queries, keys = torch.randn(200, 64), torch.randn(200, 64)
right = (queries @ keys.T / math.sqrt(64)).softmax(-1)
timid = (queries @ keys.T / math.sqrt(512)).softmax(-1)
entropies = [-(weights * weights.log()).sum(-1).mean() for weights in (right, timid)]
print(f"entropy {entropies[0]:.2f} and {entropies[1]:.2f} of at most {math.log(200):.2f} nats")
assert entropies[0] < entropies[1] < math.log(200)
# Scores are sqrt(8) times too small, so every head starts as nearly a plain average. The maps can grow to make up for
# it, so the model trains, only worse. The doctor calls it A02; nothing in a loss curve does.

# %% [markdown]
# **3.** Grouped-query attention lets several query heads share one key and value head. Show that it equals full
# attention with the shared heads repeated. What does it save?

# %% tags=["hide-cell"]
queries = torch.randn(2, 8, 10, 16)  # 8 query heads
keys, values = torch.randn(2, 2, 10, 16), torch.randn(2, 2, 10, 16)  # 2 heads that they share
grouped = attend(queries, keys, values, mask="causal")
repeated = attend(queries, keys.repeat_interleave(4, 1), values.repeat_interleave(4, 1), mask="causal")
torch.testing.assert_close(grouped, repeated)
full, shared = (sum(p.numel() for p in Attention(128, 8, n_kv_heads).parameters()) for n_kv_heads in (8, 2))
print(f"{full:,} parameters with 8 key heads, {shared:,} with 2; keys and values to remember: a quarter")
assert full - shared == 2 * 128 * (128 - 32)
# The products cost the same. What it saves is the memory of keys and values, which is what limits generation.

# %% [markdown]
# ## Where this stands in the house
#
# - [attention](../src/clearhead/parts/attention.py): `attend` and `Attention`: self, cross, grouped and cached in one.
# - [eager_attention](../src/clearhead/parts/eager_attention.py): the version with whole matrices, which can show
#   weights.
# - [the same in NumPy](../src/clearhead/reference/attention.py), beside its equation.
# - In [the studio](../docs/studio.md), the wall of heads shows the weights of your own model, and *one weight written
#   out* shows query, key, product, scale and softmax of a single cell.
#
# Next: [LayerNorm by hand](03_layernorm_by_hand.py).
