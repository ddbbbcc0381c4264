# %% [markdown]
# # 5. Masks
#
# Attention lets every token look at every token. Most of the time that is not what you want. A model that writes must
# not read what it is about to write, and nobody should read padding. A *mask* says who may look at whom.
#
# A mask is one small tensor of booleans, and more Transformers are broken by it than by anything else: it has two
# opposite conventions, four shapes, and a model with a wrong one still trains. In this lesson you write each mask by
# hand, break it on purpose in eight ways, and see what each mistake looks like from outside.

# %%
import os

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from clearhead.interop import TransformerDecoderLayer
from clearhead.models import make_block
from clearhead.parts import (
    Stack,
    additive_from_allowed,
    attend,
    attention_mask,
    forbidden_from_allowed,
    positions_from_lengths,
)

FULL = os.environ.get("SIZE") == "full"
torch.manual_seed(0)
torch.set_printoptions(precision=2, sci_mode=False)

# %% [markdown]
# ## The causal mask
#
# Five tokens score each other. Row $i$ holds the scores of query $i$, column $j$ those of key $j$. In this library
# `True` means *may attend*, everywhere. A text is read from left to right, so query $i$ may attend to key $j$ where
# $j \le i$: a lower triangle.
#
# The mask is applied to the scores, *before* the softmax, and writes $-\infty$ where attention is forbidden. Since
# $e^{-\infty} = 0$, such a key gets a weight of exactly zero, and the others share the whole.

# %%
T = 5
scores = torch.randn(T, T)  # (T_q, T_k)
causal = torch.ones(T, T, dtype=torch.bool).tril()
weights = scores.masked_fill(~causal, -torch.inf).softmax(dim=-1)
print(causal.int())
print(weights)

torch.testing.assert_close(weights.sum(-1), torch.ones(T))
assert (weights.triu(1) == 0).all()
assert weights[0, 0] == 1  # the first token has nobody but itself

# %% [markdown]
# The library makes every mask in one function. You tell it *where the tokens stand*, and it compares positions. It
# hands back the cheapest form of the rule, and there are three:
#
# - `"causal"`, a word: as many queries as keys. The fused kernel of PyTorch knows this mask without being given $T^2$
#   booleans.
# - `None`: nothing is forbidden. A single new token, with a cache of everything before it, may see all keys.
# - a boolean tensor: anything else, for example the last two tokens of five.

# %%
print(attention_mask(range(5), range(5), causal=True))
print(attention_mask(range(4, 5), range(5), causal=True))
last_two = attention_mask(range(3, 5), range(5), causal=True)
print(last_two)
assert isinstance(last_two, Tensor)
assert last_two.tolist() == causal[3:].tolist()

# %% [markdown]
# Why not simply `is_causal=True` for the last two tokens? Because PyTorch's flag puts the triangle into the *upper
# left* corner. With two queries and five keys, the query at position 3 would see only key 0. Here is the difference.

# %%
query, key, value = torch.randn(1, 1, 2, 8), torch.randn(1, 1, 5, 8), torch.randn(1, 1, 5, 8)
by_flag = F.scaled_dot_product_attention(query, key, value, is_causal=True)
by_mask = F.scaled_dot_product_attention(query, key, value, attn_mask=last_two)
print("largest difference:", (by_flag - by_mask).abs().max())
assert (by_flag - by_mask).abs().max() > 0.1
torch.testing.assert_close(by_flag[0, 0, 0], value[0, 0, 0])  # position 3 looked at key 0 and at nothing else

# %% [markdown]
# ## The padding mask
#
# Sentences in a batch have different lengths, so the short ones are filled up with a padding token. The mask for that
# forbids *keys*: no query may look at a padded key. It has one row per sentence, and two axes of size 1 that stand for
# "every head" and "every query".
#
# What about queries at padded positions? They compute something. Nobody reads it: no key mask lets other tokens see it,
# and the loss does not count it. Masking them as well only makes rows that may see nothing, which is trouble we
# come to below.

# %%
PAD = 0
ids = torch.tensor([[7, 3, 9, 4, 2], [5, 8, 6, PAD, PAD]])  # (B, T)
padding = (ids != PAD)[:, None, None, :]  # (B, 1, 1, T_k)
both = causal & padding  # (T_q, T_k) & (B, 1, 1, T_k) -> (B, 1, T_q, T_k)
print(both[1, 0].int())

lengths = (ids != PAD).sum(1)
positions = positions_from_lengths(lengths, width=5)  # -1 where there is padding
print(positions)
ours = attention_mask(positions, positions, causal=True)
assert isinstance(ours, Tensor)
is_token = ids != PAD  # (B, T_q)
assert torch.equal(ours[:, 0][is_token], both[:, 0][is_token])
assert not ours[:, 0][~is_token].any()

# %% [markdown]
# The two agree for every real query. At a padded query the library's mask forbids everything, since position $-1$ comes
# before all keys; such a row gets zeros instead of NaN, as you will see.
#
# All shapes of this lesson, in one table. `B` is the batch, `H` the heads; an axis of 1 is shared by all.
#
# | mask | shape | what it forbids |
# |---|---|---|
# | causal | `(T, T)` | keys after the query |
# | padding | `(B, 1, 1, T)` | keys that are no tokens |
# | both, for a decoder's self-attention | `(B, 1, T, T)` | either |
# | padding of the source, for cross-attention | `(B, 1, 1, T_src)` | source keys that are no tokens |
#
# The test of a padding mask is simple: **a sentence must not notice its neighbors.** The second sentence alone, and the
# same sentence beside a longer one, must give the same output.

# %%
torch.manual_seed(1)
config = ch.ModelConfig(vocab_size=10, block_size=8, n_layers=2, n_heads=2, d_model=32, bias=True)
embedding, stack = nn.Embedding(10, 32), Stack([make_block(config) for _ in range(2)])
alone = stack(embedding(ids[1:, :3]))
masked = stack(embedding(ids), mask=padding)[1:, :3]
unmasked = stack(embedding(ids))[1:, :3]
print(f"with the mask, moved by {(masked - alone).abs().max():.1e}; without, by {(unmasked - alone).abs().max():.1e}")
torch.testing.assert_close(masked, alone)
assert (unmasked - alone).abs().max() > 1e-2

# %% [markdown]
# With a *causal* mask and padding on the right, the padding mask is not needed at all: real tokens come first and never
# look right. The library knows this and stays with `"causal"`. Padding on the *left*, as in generation from prompts of
# different lengths, does need it, and needs positions that start behind the padding (exercise 2).
#
# ## Two polarities
#
# `F.scaled_dot_product_attention` reads a boolean mask as this library does: `True` may attend. `nn.MultiheadAttention`
# and all `nn.Transformer...` layers read it the other way round: `True` must **not** attend. And then there are masks
# of floats, which are added to the scores. The same tensor, given to two layers of one library, means opposite things,
# and both accept it.

# %%
torch.manual_seed(2)
x = torch.randn(1, T, 16)
mha = nn.MultiheadAttention(16, 1, bias=False, batch_first=True)


def weights_of_mha(mask: Tensor) -> Tensor:
    """The weights (T, T) that torch's module computes with this mask."""
    return mha(x, x, x, attn_mask=mask)[1][0]


right = weights_of_mha(forbidden_from_allowed(causal))
print("the causal mask, converted:", right, sep="\n")
additive = weights_of_mha(additive_from_allowed(causal))
torch.testing.assert_close(right, additive)
assert (right.triu(1) == 0).all()

wrong = weights_of_mha(causal)
print("the same mask as it was:", wrong, sep="\n")
assert (wrong.tril()[:-1] == 0).all()  # it sees the future and nothing else
assert wrong[-1].isnan().all()  # and the last token sees nothing: 0 / 0

# %% [markdown]
# The wrong polarity here ends in NaN because the last row may see nothing. Be glad if it does. Had the mask been one
# with the opposite triangle and a finite number, it would train, and well.
#
# The adapters `forbidden_from_allowed`, `allowed_from_forbidden`, `additive_from_allowed` and `allowed_from_additive`
# carry both polarities in their names. Use them at the border to other code and one convention inside.
#
# ## Two masks meet in a decoder layer
#
# A translator's decoder layer attends twice: to the target, with a causal mask (and the target's padding), and to the
# source, with the source's padding. `nn.TransformerDecoderLayer` has *six* arguments for that. Ours has two, `mask`
# and `memory_mask`.

# %%
torch.manual_seed(3)
B, T_tgt, T_src, D = 2, 4, 6, 32
target, memory = torch.randn(B, T_tgt, D), torch.randn(B, T_src, D)
target_positions = positions_from_lengths(torch.tensor([4, 3]), T_tgt)
source_positions = positions_from_lengths(torch.tensor([6, 2]), T_src)
mask = attention_mask(target_positions, target_positions, causal=True)  # (B, 1, T, T)
memory_mask = attention_mask(range(T_tgt), source_positions, causal=False)  # (B, 1, T, T_src)
print("mask", tuple(mask.shape), " memory_mask", tuple(memory_mask.shape))

layer = nn.TransformerDecoderLayer(D, 4, 64, dropout=0.0, batch_first=True)
theirs = layer(
    target,
    memory,
    tgt_mask=forbidden_from_allowed(torch.ones(T_tgt, T_tgt, dtype=torch.bool).tril()),
    tgt_key_padding_mask=target_positions < 0,
    memory_key_padding_mask=source_positions < 0,
)
twin = TransformerDecoderLayer(D, 4, 64, dropout=0.0, batch_first=True)
twin.load_state_dict(layer.state_dict())
ours = twin.block(target, memory, mask=mask, memory_mask=memory_mask)
real = target_positions >= 0
torch.testing.assert_close(ours[real], theirs[real])
print("equal on all tokens that are no padding")

# %% [markdown]
# The two masks are easily exchanged. If source and target happen to be equally long, no shape complains. What they
# *mean* still tells them apart: all targets of a sentence see the same part of its source, and no target sees the
# future. The library's stack checks that.

# %%
square = torch.randn(B, T_tgt, D)  # a source as long as the target
visible = attention_mask(range(T_tgt), positions_from_lengths(torch.tensor([4, 2]), T_tgt), causal=False)
try:
    Stack([twin.block])(target, square, mask=visible, memory_mask=mask)
except AssertionError as error:
    print(error)
else:
    raise AssertionError("exchanged masks were accepted")

# %% [markdown]
# ## How negative is negative?
#
# Tutorials write $-\infty$, $-10^9$ or $-10^4$ into forbidden places. As long as scores are small, all three give a
# weight of zero: $e^{-10000}$ underflows. The number matters when scores are large, when the type is small, and in a
# row that may see nothing.
#
# First: a forbidden key whose score is large. Some people *add* the number to the score instead of replacing it, and
# then a score can outweigh it. Scores of 10,000 are not common, but an untrained model without the scale
# $1/\sqrt{d_k}$, or one that diverges, gets there.

# %%
large = torch.tensor([0.0, 3.0, 20_000.0])  # the last key is forbidden
allowed = torch.tensor([True, True, False])
print(f"{'mask':>8}  weight of the forbidden key")
leaks = {}
for number in (-1e4, -1e9, -torch.inf):
    addend = torch.where(allowed, 0.0, number)
    leaks[number] = (large + addend).softmax(-1)[2].item()
    print(f"{number:8.0e}  {leaks[number]:.3f}")
assert list(leaks.values()) == [1, 0, 0]

# %% [markdown]
# Second: small types. The largest float16 is 65,504. Written into a float16 tensor, $-10^9$ overflows to $-\infty$ (or
# is refused), so code that chose it to avoid infinities gets them back.

# %%
print("-1e9 in float16:", torch.tensor(-1e9).half(), " the smallest float16:", torch.finfo(torch.float16).min)
print("-1e9 in bfloat16:", torch.tensor(-1e9).bfloat16().item())
assert torch.tensor(-1e9).half() == -torch.inf
assert torch.finfo(torch.float16).min == -65504

# %% [markdown]
# Third: a row that may see nothing. It happens: a padded query, an empty source, a document mask with a hole. With
# $-\infty$ the softmax is $0/0$. With $-10^9$ *in place of* the scores all are equal, so the query attends to
# everything that is forbidden, evenly. With $-10^9$ *added*, float32 rounds the scores away, for neighbors of $10^9$
# are 64 apart. With $-10^4$ added, the scores survive and the mask has no effect at all.

# %%
blind = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
nothing = torch.zeros(5, dtype=torch.bool)
rows = {
    "-inf": blind.masked_fill(~nothing, -torch.inf).softmax(-1),
    "-1e9 in place": blind.masked_fill(~nothing, -1e9).softmax(-1),
    "-1e9 added": (blind - 1e9).softmax(-1),
    "-1e4 added": (blind - 1e4).softmax(-1),
    "no mask": blind.softmax(-1),
}
for name, row in rows.items():
    print(f"{name:>14}  {row}")
assert rows["-inf"].isnan().all()
assert torch.equal(rows["-1e9 in place"], torch.full((5,), 0.2))
assert torch.equal(rows["-1e9 added"], torch.full((5,), 0.2))
torch.testing.assert_close(rows["-1e4 added"], rows["no mask"], rtol=1e-3, atol=1e-3)

# %% [markdown]
# One NaN is worse than it looks. Suppose that the loss leaves that row out, so its gradient is zero. Zero times NaN is
# NaN. The values' gradient sums over all queries, so all of it is NaN, and one optimizer step later all weights
# are. (The keys are luckier: `masked_fill` lets no gradient through where it wrote. An *added* $-\infty$ does.) The
# library's `attend` gives such a query zeros, and all gradients are finite.

# %%
drawn = torch.randn(3, 1, 1, 5, 8)
hides_row_0 = torch.ones(5, 5, dtype=torch.bool)
hides_row_0[0] = False


def filled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT).masked_fill(~hides_row_0, -torch.inf).softmax(-1) @ value


def added(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT + additive_from_allowed(hides_row_0)).softmax(-1) @ value


def house(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attend(query, key, value, mask=hides_row_0)


broken = {}
for attention in (filled, added, house):
    leaves = [tensor.clone().requires_grad_() for tensor in drawn]
    attention(*leaves)[:, :, 1:].sum().backward()  # row 0 is left out
    broken[attention.__name__] = [int(leaf.grad.isnan().sum()) for leaf in leaves]
    print(f"{attention.__name__:>6}: NaN in the gradients of 40 queries, keys, values:", *broken[attention.__name__])
assert broken == {"filled": [0, 0, 40], "added": [8, 40, 40], "house": [0, 0, 0]}
assert (house(*drawn)[0, 0, 0] == 0).all()

# %% [markdown]
# ## What each mistake looks like
#
# Now the point of the lesson. Here is a small GPT in 40 lines. Its attention gets the scores and turns them into
# weights by a function that we can exchange: one that is right, and eight that people wrote.

# %%
BLOCK = 32


class Attending(nn.Module):
    """Multi-head attention whose step from scores to weights is a function."""

    def __init__(self, d_model: int, n_heads: int, weigh: object) -> None:
        super().__init__()
        self.n_heads, self.weigh = n_heads, weigh
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        B, T, D = query.shape
        maps = ((self.query, query), (self.key, key), (self.value, value))
        q, k, v = (linear(x).view(B, T, self.n_heads, -1).transpose(1, 2) for linear, x in maps)
        scores = q @ k.mT * (D // self.n_heads) ** -0.5  # (B, H, T, T)
        return self.output((self.weigh(scores) @ v).transpose(1, 2).reshape(B, T, D))


class Layer(nn.Module):
    def __init__(self, d_model: int, n_heads: int, weigh: object) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attention = Attending(d_model, n_heads, weigh)
        self.feedforward = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed)
        return x + self.feedforward(self.norm2(x))


class SmallGPT(nn.Module):
    def __init__(self, vocab_size: int, weigh: object, d_model: int = 64, n_layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(BLOCK, d_model)
        self.layers = nn.Sequential(*(Layer(d_model, 4, weigh) for _ in range(n_layers)))
        self.norm, self.head = nn.LayerNorm(d_model), nn.Linear(d_model, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.layers(x)))


# %%
def triangle(scores: Tensor, diagonal: int = 0) -> Tensor:
    return torch.ones(scores.shape[-2:], dtype=torch.bool).tril(diagonal)


def right_mask(scores: Tensor) -> Tensor:
    return scores.masked_fill(~triangle(scores), -torch.inf).softmax(-1)


def no_mask(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


def inverted(scores: Tensor) -> Tensor:
    return scores.masked_fill(triangle(scores), -1e9).softmax(-1)


def transposed(scores: Tensor) -> Tensor:
    return scores.masked_fill(~triangle(scores).mT, -torch.inf).softmax(-1)


def sees_the_next(scores: Tensor) -> Tensor:
    return scores.masked_fill(~triangle(scores, 1), -torch.inf).softmax(-1)


def not_itself(scores: Tensor) -> Tensor:
    return scores.masked_fill(~triangle(scores, -1), -1e9).softmax(-1)


def after_softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1) * triangle(scores)


def added_as_one(scores: Tensor) -> Tensor:
    return (scores + triangle(scores).float()).softmax(-1)


def softmax_over_queries(scores: Tensor) -> Tensor:
    return scores.masked_fill(~triangle(scores), -torch.inf).softmax(-2)


MISTAKES = {
    "right": right_mask,
    "no mask": no_mask,
    "inverted, -1e9": inverted,
    "transposed": transposed,
    "sees the next token": sees_the_next,
    "does not see itself": not_itself,
    "after the softmax": after_softmax,
    "added as 0 and 1": added_as_one,
    "softmax over queries": softmax_over_queries,
}

# %% [markdown]
# Each model trains on the same stories, the same batches and the same initial weights. We measure two losses.
#
# - The **training loss**, as everybody prints it: the whole window at once.
# - The **honest loss**: cut the window after each token, and ask only for the next one. There is no future in the
#   input, so nothing can be copied from it. This is the situation in which a model writes.
#
# In a causal model the two are the same number. That is what causal *means*.

# %%
text = ch.data.stories.text(200_000, 1)
letters = sorted(set(text))
tokens = torch.tensor([letters.index(letter) for letter in text])
train, held_out = tokens[:180_000], tokens[180_000:]


def windows(source: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, (count, BLOCK) each."""
    starts = torch.randint(len(source) - BLOCK, (count, 1), generator=torch.Generator().manual_seed(seed))
    drawn = source[starts + torch.arange(BLOCK + 1)]
    return drawn[:, :-1], drawn[:, 1:]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def fit(model: nn.Module, steps: int, rate: float = 3e-3) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for step in range(steps):
        inputs, targets = windows(train, 32 if FULL else 16, step)
        loss = loss_of(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def two_losses(model: nn.Module) -> tuple[float, float]:
    """On held-out text: whole windows at once, and each token from what stands before it alone."""
    inputs, targets = windows(held_out, 64 if FULL else 16, seed=0)
    last = [model(inputs[:, : t + 1])[:, -1] for t in range(BLOCK)]  # (B, V) each
    return loss_of(model(inputs), targets).item(), loss_of(torch.stack(last, 1), targets).item()


@torch.no_grad()
def write(model: nn.Module, prompt: str, count: int = 40) -> str:
    """The likeliest letters after the prompt."""
    ids = [letters.index(letter) for letter in prompt]
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids[-BLOCK:]]))[0, -1].argmax()))
    return "".join(letters[i] for i in ids)


steps = 300 if FULL else 80
losses = {}
print(f"{'':22} at once  honest  after {steps} steps")
for name, weigh in MISTAKES.items():
    model = SmallGPT(len(letters), weigh)
    fit(model, steps)
    losses[name] = two_losses(model)
    print(f"{name:22} {losses[name][0]:7.3f} {losses[name][1]:7.3f}  {write(model, 'Once upon a ')!r}")

# %% [markdown]
# Read the table as a doctor reads a fever chart.
#
# - **Right**: two equal numbers.
# - **No mask, inverted, transposed, sees the next token**: the loss falls towards zero, far below what the text's own
#   entropy allows. It is the best curve you have ever had. The honest loss is bad, and the text is garbage: the model
#   learned to copy the token that it was asked for.
# - **Does not see itself**: no leak, so both numbers agree, except in the first token: that row is blind, $-10^9$
#   everywhere, and attends evenly to the whole window. It trains as well as the right one, for the
#   residual stream carries the token itself past the attention.
# - **After the softmax**: the weights of the future are set to zero, but the softmax has divided by them. The leak is a
#   single number per row and head, the denominator. After a few steps the loss is only a little too good. Later the
#   model has learned to read the future from that number, and its honest loss is worse than a guess.
# - **Added as 0 and 1**: the mask is a mild preference for the past. All of the future is there.
# - **Softmax over queries**: the weights of a *key* sum to one over the queries, so a past output depends on the later
#   queries, again through a denominator, and the loss takes the same way down.

# %%
gap = {name: honest - at_once for name, (at_once, honest) in losses.items()}
assert abs(gap["right"]) < 1e-4
leaky = ["no mask", "inverted, -1e9", "transposed", "sees the next token", "added as 0 and 1"]
floor = ch.data.stories.entropy_per_character()
print(f"exact entropy of the stories: {floor:.3f} nats per letter")
assert all(gap[name] > 0.01 for name in leaky)
if FULL:
    assert all(gap[name] > 1 for name in leaky)
    assert all(losses[name][0] < floor for name in leaky[:-1])  # better than possible
assert abs(losses["does not see itself"][0] - losses["right"][0]) < 0.25

# %% [markdown]
# ## The picture of a mask
#
# You need no training to see a mask. Ask the model: *does output $i$ change with input $j$?* The gradient of the logits
# at $i$ with respect to the embedding at $j$ answers that, exactly: where nothing flows it is zero to the last bit.
# Black is zero. A causal model is black above the diagonal.


# %%
def influence(model: SmallGPT, T: int = 10) -> Tensor:
    """(T, T): how strongly the logits at i depend on the token at j."""
    ids = windows(held_out, 1, seed=1)[0][:, :T]
    x = (model.embedding(ids) + model.positions(torch.arange(T))).detach().requires_grad_()
    logits = model.head(model.norm(model.layers(x)))  # (1, T, V)
    direction = torch.randn(logits.shape[-1], generator=torch.Generator().manual_seed(0))
    rows = [torch.autograd.grad((logits[0, i] * direction).sum(), x, retain_graph=True)[0] for i in range(T)]
    return torch.stack([row[0].norm(dim=-1) for row in rows])


untrained = {name: influence(SmallGPT(len(letters), weigh)) for name, weigh in MISTAKES.items()}
figure, axes = plt.subplots(3, 3, figsize=(9, 9), layout="constrained")
for axis, (name, strength) in zip(axes.flat, untrained.items(), strict=True):
    axis.imshow((strength / strength.max()).clamp(min=1e-4).log10(), cmap="magma", vmin=-4, vmax=0)
    axis.set(title=name, xlabel="input j", ylabel="logits i")
plt.show()

sees_future = {name: bool((strength.triu(1) > 0).any()) for name, strength in untrained.items()}
print(sees_future)
assert not sees_future["right"]
assert all(sees_future[name] for name in MISTAKES if name != "right")

# %% [markdown]
# Even "does not see itself" has a bright first row: its blind query looks at everything, the future included. With
# $-\infty$ it would be NaN at the first step, which is a better symptom.
#
# This probe is the heart of `clearhead doctor`. It needs no loss and no training, works on any model, and names the
# fault. Here is what it says about the models above.

# %%
examined = MISTAKES if FULL else {name: MISTAKES[name] for name in ("right", "after the softmax")}
for name, weigh in examined.items():
    report = ch.doctor.check(SmallGPT(len(letters), weigh), ch.doctor.Spec(kind="causal"))
    failures = [finding for finding in report.findings if finding.status == "fail"]
    print(f"{name:22} {'; '.join(f'{finding.id} {finding.title}' for finding in failures) or 'passed'}")
    assert bool(failures) == (name != "right")

# %% [markdown]
# ## Normalizing only the query
#
# The last mistake has nothing to do with a mask, but lives at the same door, and was published more than once. In a
# pre-norm layer the residual wrapper normalizes its first argument. If attention takes query, key and value
# separately, somebody calls it like this:
#
#     x = x + attention(norm(x), x, x)      # the keys and values are not normalized
#     h = norm(x); x = x + attention(h, h, h)   # meant
#
# The residual stream grows with depth; a norm is there to keep what a layer reads at one size. Without it, keys and
# values grow with the stream, and so do the scores.


# %%
class QueryOnly(Layer):
    """The published bug: keys and values are read from the stream without the norm."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), x, x)
        return x + self.feedforward(self.norm2(x))


def deep(layer: type[Layer], n_layers: int = 8) -> SmallGPT:
    model = SmallGPT(len(letters), right_mask, n_layers=n_layers)
    torch.manual_seed(1)
    model.layers = nn.Sequential(*(layer(64, 4, right_mask) for _ in range(n_layers)))
    return model


def value_sizes(model: SmallGPT) -> list[float]:
    """The root mean square of the values in each layer."""
    sizes: list[float] = []
    hooks = [
        layer.attention.value.register_forward_hook(
            lambda module, inputs, output: sizes.append(output.pow(2).mean().sqrt().item())
        )
        for layer in model.layers
    ]
    model(windows(held_out, 16, seed=2)[0])
    for hook in hooks:
        hook.remove()
    return sizes


steps = 100 if FULL else 20
sizes, honest = {}, {}
for name, layer in (("norm(x) for all", Layer), ("norm(x) for the query only", QueryOnly)):
    model = deep(layer)
    fit(model, steps)
    sizes[name], honest[name] = value_sizes(model), two_losses(model)[1]
    print(f"{name:27} held-out loss {honest[name]:.3f}  values by layer", [round(size, 2) for size in sizes[name]])

plt.figure(figsize=(6, 3.5), layout="constrained")
for name, values in sizes.items():
    plt.plot(range(1, len(values) + 1), values, marker="o", label=name)
plt.xlabel("layer")
plt.ylabel("size of the values (RMS)")
plt.legend()
plt.show()

# %% [markdown]
# Both train. The faulty one is not caught by any loss that you would look at, only by the sizes: without the norm, what
# attention mixes grows from layer to layer. The library cannot express this bug, since its attention takes *one*
# tensor `x` and makes queries, keys and values from it. The doctor has a check for it, N12.

# %%
report = ch.doctor.check(deep(QueryOnly, n_layers=2), ch.doctor.Spec(kind="causal"))
print(*(f"{finding.id} {finding.title}" for finding in report.findings), sep="\n")
assert "N12" in report
growth = {name: values[-1] / values[0] for name, values in sizes.items()}
print({name: round(ratio, 2) for name, ratio in growth.items()})
assert growth["norm(x) for the query only"] > growth["norm(x) for all"]

# %% [markdown]
# ## Exercises
#
# **1.** A *sliding window* of 3 lets a query see itself and the two tokens before it. Write the mask for `T = 6` with
# `tril` and `triu`, and compare with the library's. With two layers of such a window, how far back can a token see?

# %% tags=["hide-cell"]
square = torch.ones(6, 6, dtype=torch.bool)
window = square.tril() & square.triu(-2)
assert torch.equal(attention_mask(range(6), range(6), causal=True, window=3), window)
two_layers = (window.int() @ window.int()) > 0  # through one token in between
farthest = max(i - j for i in range(6) for j in range(6) if two_layers[i, j])
print(f"two layers see {farthest} tokens back: the window less one, times the layers")
assert farthest == 2 * (3 - 1)

# %% [markdown]
# **2.** Fill the short sentence up on the *left*. Which positions must its tokens have so that a model with learned
# positions gives the same answer as for the sentence alone? Show it with `ch.DecoderLM`.

# %% tags=["hide-cell"]
model = ch.DecoderLM(ch.ModelConfig(vocab_size=10, block_size=8, n_layers=2, n_heads=2, d_model=32)).eval()
with torch.no_grad():
    model.positions.weight.normal_()  # so that a position matters
sentence = torch.tensor([[5, 8, 6]])
left = torch.tensor([[PAD, PAD, 5, 8, 6]])
left_positions = positions_from_lengths(torch.tensor([3]), 5, "left")
print(left_positions)
assert left_positions.tolist() == [[-1, -1, 0, 1, 2]]
torch.testing.assert_close(model(left, positions=left_positions)[:, 2:], model(sentence))
assert not torch.allclose(model(left)[:, 2:], model(sentence), atol=1e-3)

# %% [markdown]
# **3.** A *prefix* model may look at the whole prompt in both directions, and only then turns causal. Write the mask
# for 6 tokens with a prompt of 3. Which outputs may change when the last token of the prompt changes, and which when
# the first written token does?

# %% tags=["hide-cell"]
in_prompt = torch.arange(6) < 3
prefix = square.tril() | in_prompt[None, :]
print(prefix.int())
assert prefix[:, 2].all()  # the prompt's last token: every output
assert prefix[:, 3].tolist() == [False] * 3 + [True] * 3  # the first written one: itself and what follows

# %% [markdown]
# ## Where this stands in the house
#
# - [masks](../src/clearhead/parts/masks.py) makes every mask from positions, converts to and from PyTorch's polarity,
#   and refuses exchanged masks.
# - [attention](../src/clearhead/parts/attention.py) and [eager attention](../src/clearhead/parts/eager_attention.py)
#   apply them; a blind query gets zeros there.
# - [the catalogue of faults](../src/clearhead/doctor/catalogue/faults.toml): M01 to M20 are the mistakes of this lesson
#   and some more. [The doctor](../docs/doctor.md) finds them in your model.
# - In [the studio](../docs/studio.md), click on an attention map: forbidden cells are empty, and the enlarged cell
#   shows the score and the mask that it met.
