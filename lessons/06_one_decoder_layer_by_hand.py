# %% [markdown]
# # 6. One decoder layer by hand
#
# The decoder layer of the first Transformer is the largest of the small machines in this field: it attends to what it
# has written, attends to the source, and thinks about it. If you can compute one with your own hands, every other
# Transformer is the same with something left out.
#
# We compute one in NumPy, in eight dimensions, and print every number. Then PyTorch's layer and this library's do the
# same, and all three agree. After that we make it large and count, drop, swap and stack it.

# %%
import copy
import os

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.interop import TransformerDecoderLayer
from clearhead.models import make_block

FULL = os.environ.get("SIZE") == "full"
Array = np.ndarray

# %% [markdown]
# ## The numbers to begin with
#
# Three target tokens, four source tokens, `D` = 8 dimensions, `H` = 2 heads of 4, a feed-forward of 16. All numbers
# come from one seed, in this order, so that you can check them against anybody's. `memory` stands for what an encoder
# made of the source.

# %%
T, T_src, D, H, d_ff = 3, 4, 8, 2, 16
random = np.random.RandomState(0)  # the stream of np.random.seed(0)
x = random.randn(1, T, D) * 0.3  # (B, T, D)
memory = random.randn(1, T_src, D) * 0.3  # (B, T_src, D)


def matrix(width_in: int, width_out: int) -> Array:
    return random.randn(width_in, width_out) / np.sqrt(width_in)


Wq1, Wk1, Wv1, Wo1, Wq2, Wk2, Wv2, Wo2 = (matrix(D, D) for _ in range(8))
W1, W2 = matrix(D, d_ff), matrix(d_ff, D)

# %% [markdown]
# ## The layer
#
# Four functions are all there is. *Layer norm* takes each token by itself: subtract the mean of its eight numbers, and
# divide by their standard deviation. *Softmax* turns a row of scores into weights that sum to 1. *Attention* is
#
# $$\text{softmax}\left(\frac{Q K^T}{\sqrt{d_k}}\right) V$$
#
# for every head, the heads side by side, times one more matrix. The *feed-forward* widens, sets negative numbers to
# zero, and narrows again.
#
# `show` prints a row: what token 0 has at this place.

# %%
trace: dict[str, Array] = {}


def show(name: str, values: Array) -> Array:
    """Keep the values, and hand them on. A new name prints its row; heads (B, H, T, ...) are printed side by side."""
    if name not in trace:
        first = values[0, 0] if values.ndim == 3 else values[0, :, 0].reshape(-1)
        print(f"{len(trace) + 1:2}  {name:16}", *(f"{number:7.4f}" for number in first))
    trace[name] = values
    return values


def layer_norm(x: Array, eps: float = 1e-5) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(-1, keepdims=True))  # less the greatest, so that nothing overflows
    return powers / powers.sum(-1, keepdims=True)


def heads(x: Array) -> Array:
    """(B, T, D) -> (B, H, T, D / H)."""
    B, T, D = x.shape
    return x.reshape(B, T, H, D // H).transpose(0, 2, 1, 3)


def attention(name: str, x: Array, source: Array, weights: tuple[Array, ...], allowed: Array | bool = True) -> Array:
    W_query, W_key, W_value, W_output = weights
    query = show(f"{name} query", heads(x @ W_query))
    key = show(f"{name} key", heads(source @ W_key))
    value = show(f"{name} value", heads(source @ W_value))
    scores = show(f"{name} scores", query @ key.swapaxes(-1, -2) / np.sqrt(D // H))
    attended = show(f"{name} weights", softmax(np.where(allowed, scores, -np.inf)))
    mixed = show(f"{name} mixed", attended @ value)
    side_by_side = mixed.transpose(0, 2, 1, 3).reshape(x.shape)
    return show(f"{name} output", side_by_side @ W_output)


def feedforward(x: Array) -> Array:
    hidden = show("ffn hidden", np.maximum(show("ffn up", x @ W1), 0))
    return show("ffn output", hidden @ W2)


# %% [markdown]
# Now the layer itself, in six lines. Each sublayer reads the *residual stream*, and its result is added to it. In the
# first Transformer the sum is normalized afterwards: *post-norm*.
#
# The self-attention is causal: token 0 sees itself alone, so its two heads have the weights 1, 0, 0. The
# cross-attention sees all four source tokens. Twenty rows follow.

# %%
causal = np.tri(T, dtype=bool)


def decoder_layer(x: Array, memory: Array) -> Array:
    x = show("x1", layer_norm(x + attention("self", x, x, (Wq1, Wk1, Wv1, Wo1), causal)))
    x = show("x2", layer_norm(x + attention("cross", x, memory, (Wq2, Wk2, Wv2, Wo2))))
    return show("out", layer_norm(x + feedforward(x)))


out = decoder_layer(x, memory)
print("    out, token 2    ", *(f"{number:7.4f}" for number in out[0, 2]))
assert len(trace) == 20

# %% [markdown]
# Others have printed these numbers before us, to four decimals. Ours must be the same.

# %%
published = {
    ("self output", 0): [-0.2127, -0.0391, 0.2221, -0.0998, 0.1540, -0.0465, -0.0045, -0.1185],
    ("x1", 0): [0.2021, -0.4840, 0.7825, 0.9476, 1.3605, -1.7090, 0.0973, -1.1971],
    ("cross output", 0): [-0.2662, -0.3756, -0.2223, 0.1929, -0.0257, 0.2025, 0.1609, 0.3490],
    ("x2", 0): [-0.0696, -0.9085, 0.5886, 1.2006, 1.4055, -1.5906, 0.2703, -0.8963],
    ("ffn output", 0): [0.4177, -0.1750, -0.3390, -0.3945, -0.4040, -0.8389, 0.5337, 0.1462],
    ("out", 0): [0.4296, -0.8520, 0.3414, 0.8396, 1.0145, -2.0569, 0.8376, -0.5536],
    ("out", 2): [1.3633, 0.0677, 0.4245, -0.9663, -2.0952, 0.4925, 0.6174, 0.0961],
}
for (name, token), row in published.items():
    np.testing.assert_allclose(trace[name][0, token], row, atol=5.1e-5)
print(f"{len(published)} published rows agree to four decimals")

# %% [markdown]
# What can you read in the trace? Every row of `x1`, `x2` and `out` has mean 0 and deviation 1, whatever went in. The
# weights of each head sum to 1. Token 0's `self mixed` is its own `self value`, since it sees nobody else. And nothing
# that the layer knows about the source comes from anywhere but the rows called `cross`.

# %%
for name in ("x1", "x2", "out"):
    np.testing.assert_allclose(trace[name].mean(-1), 0, atol=1e-12)
    np.testing.assert_allclose(trace[name].std(-1), 1, atol=1e-3)
for name in ("self weights", "cross weights"):
    np.testing.assert_allclose(trace[name].sum(-1), 1)
np.testing.assert_allclose(trace["self mixed"][0, :, 0], trace["self value"][0, :, 0])

# %% [markdown]
# ## The same in PyTorch
#
# `nn.Linear` keeps its matrix the other way round, (out, in), and `nn.MultiheadAttention` keeps those for query, key
# and value on top of each other, as `in_proj_weight`. Apart from that, the weights go where they belong, and the
# numbers are the same to twelve decimals.

# %%
torch_layer = nn.TransformerDecoderLayer(D, H, d_ff, dropout=0.0, batch_first=True, bias=False, dtype=torch.float64)
torch_layer.load_state_dict(
    {
        "self_attn.in_proj_weight": torch.tensor(np.concatenate([Wq1.T, Wk1.T, Wv1.T])),
        "self_attn.out_proj.weight": torch.tensor(Wo1.T),
        "multihead_attn.in_proj_weight": torch.tensor(np.concatenate([Wq2.T, Wk2.T, Wv2.T])),
        "multihead_attn.out_proj.weight": torch.tensor(Wo2.T),
        "linear1.weight": torch.tensor(W1.T),
        "linear2.weight": torch.tensor(W2.T),
        **{f"norm{number}.weight": torch.ones(D) for number in (1, 2, 3)},
    }
)
inputs = torch.tensor(x), torch.tensor(memory)
forbidden = torch.ones(T, T, dtype=torch.bool).triu(1)  # True means: must not attend
by_torch = torch_layer(*inputs, tgt_mask=forbidden)
print("largest difference:", np.abs(by_torch.detach().numpy() - out).max())
np.testing.assert_allclose(by_torch.detach().numpy(), out, atol=1e-12)

# %% [markdown]
# And the same in this library: one `Block` with cross-attention. `ch.worked_example` is this very layer, computed by
# the library's own NumPy twin; `torch=True` puts what the parts compute beside it. On the command line it is `clearhead
# trace --example`.

# %%
example = ch.worked_example(torch=True)
differences = [step.difference for step in example.steps if step.difference is not None]
print(f"{len(differences)} intermediates, largest difference {max(differences):.1e}")
assert max(differences) < 1e-12
np.testing.assert_allclose(example.steps[-1].values, out, atol=1e-12)

# %% [markdown]
# ## Pre-norm: one word
#
# Today's models normalize *before* each sublayer and leave the stream alone: $x + f(\text{norm}(x))$ instead of
# $\text{norm}(x + f(x))$. In the library it is one word of the config. By hand it is one line per sublayer.

# %%
trace.clear()


def pre_norm_layer(x: Array, memory: Array) -> Array:
    normed = layer_norm(x)
    x = show("x1", x + attention("self", normed, normed, (Wq1, Wk1, Wv1, Wo1), causal))
    x = show("x2", x + attention("cross", layer_norm(x), memory, (Wq2, Wk2, Wv2, Wo2)))
    return show("out", x + feedforward(layer_norm(x)))


out_pre = pre_norm_layer(x, memory)
np.testing.assert_allclose(ch.worked_example(norm_position="pre").steps[-1].values, out_pre, atol=1e-12)
print("deviation of the output by token: post", out.std(-1).round(3)[0], " pre", out_pre.std(-1).round(3)[0])

# %% [markdown]
# The output is no longer normalized: that is why a pre-norm stack has one more norm at its end, and a post-norm stack
# has none. (`nn.Transformer` adds one to both; two norms in a row do nothing that one does not.)
#
# ## All shapes
#
# The layer as it was published: 512 dimensions, 8 heads, a feed-forward of 2,048. `ch.record` looks at what every
# module computes while the layer runs. `B` is 2, `T` is 7 and `T_src` 11, so that you can tell the axes apart.

# %%
config = ch.ModelConfig(
    architecture="encoder_decoder",
    d_model=512,
    n_heads=8,
    d_ff=2048,
    bias=True,
    norm_position="post",
    feedforward="relu",
)
block = make_block(config, cross=True)
with ch.record(block) as recorded:
    block(torch.randn(2, 7, 512), torch.randn(2, 11, 512), mask="causal")
names = ("q", "k", "v", "attention", "mixed")
for part in ("self_attention", "cross_attention"):
    for name in names:
        print(f"{part + ' ' + name:26} {recorded[f'{part}.part.{name}'].shape}")
    print(f"{part:26} {recorded[part].shape}")
print(f"{'feedforward up':26} {recorded['feedforward.part.up'].shape}")
print(f"{'feedforward':26} {recorded['feedforward'].shape}")
assert recorded["self_attention.part.attention"].shape == (2, 8, 7, 7)
assert recorded["cross_attention.part.attention"].shape == (2, 8, 7, 11)
assert recorded["feedforward.part.up"].shape == (2, 7, 2048)

# %% [markdown]
# ## All parameters
#
# An attention has four matrices of 512 x 512 with biases. A feed-forward has two, of 512 x 2,048. A norm has a scale
# and a shift per dimension. In sum, 4,204,032, and the feed-forward is half of it. The number of heads does not appear:
# heads cut the matrices, they do not add to them.

# %%
attention_parameters = 4 * (512 * 512 + 512)
feedforward_parameters = 512 * 2048 + 2048 + 2048 * 512 + 512
norm_parameters = 3 * 2 * 512
by_hand = 2 * attention_parameters + feedforward_parameters + norm_parameters


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


for name, sublayer in block.named_children():
    inner = {projection: count(module) for projection, module in sublayer.part.named_children() if count(module)}
    print(f"{name:16} {count(sublayer):9,}", {**inner, "norm": count(sublayer.norm)})
print(f"{'in all':16} {count(block):9,}")
assert count(block) == by_hand == 4_204_032
assert (attention_parameters, feedforward_parameters, norm_parameters) == (1_050_624, 2_099_712, 3_072)
assert count(nn.TransformerDecoderLayer(512, 8, 2048)) == by_hand

# %% [markdown]
# ## The three dropouts
#
# Dropout sets random numbers to zero in training and enlarges the others, by $1 / (1 - p)$, so that the mean stays. A
# Transformer has it in three kinds of places, and PyTorch's layer uses one number for all:
#
# 1. on the *output of each sublayer*, before it is added to the stream;
# 2. on the *attention weights*, so that a query now and then does without a key it likes;
# 3. inside the *feed-forward*, on the hidden layer.
#
# Never on the stream itself: what is dropped there is lost for all layers above.

# %%
torch.manual_seed(0)
kinds = ("dropout", "attention_dropout", "feedforward_dropout")
for kind in kinds:
    dropping = make_block(ch.ModelConfig(d_model=64, n_heads=4, **{kind: 0.25})).train()
    ones = torch.randn(1, 200, 64)
    before = dropping.self_attention.branch(ones), dropping.feedforward.branch(ones)
    again = dropping.self_attention.branch(ones), dropping.feedforward.branch(ones)
    zeros = [(tensor == 0).float().mean().item() for tensor in before]
    random_again = [not torch.equal(*pair) for pair in zip(before, again, strict=True)]
    print(f"{kind:20} exact zeros in the branches: {zeros[0]:.2f}, {zeros[1]:.2f}; random: {random_again}")
    assert random_again == [kind != "feedforward_dropout", kind != "attention_dropout"]
    if kind == "dropout":
        assert all(abs(share - 0.25) < 0.03 for share in zeros)
    still = dropping.eval()
    assert torch.equal(still(ones), still(ones))

# %% [markdown]
# Only the first kind leaves zeros in what is added to the stream. After the second kind a row of weights no longer sums
# to 1, except on average. In evaluation none of them does anything; forgetting `model.eval()` is the commonest reason
# why a model answers differently every time.
#
# ## A drop-in
#
# `clearhead.interop.TransformerDecoderLayer` has the signature of PyTorch's layer: the same arguments, the same masks
# with the same polarity, the same names in its state dict, even the same initial weights from the same seed. Inside is
# a `Block` of this library. So it can be swapped into a model that you already have. Here is one: PyTorch's decoder of
# three layers, and the same with ours.

# %%
torch.manual_seed(0)
decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(64, 4, 128, dropout=0.0, batch_first=True), 3)
for parameter in decoder.parameters():
    parameter.data += 0.02 * torch.randn_like(parameter)  # copies of one layer are born equal; these are not
swapped = copy.deepcopy(decoder)
for index, layer in enumerate(decoder.layers):
    swapped.layers[index] = TransformerDecoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    swapped.layers[index].load_state_dict(layer.state_dict())

target, source = torch.randn(2, 9, 64), torch.randn(2, 6, 64)
hidden = {
    "tgt_mask": torch.ones(9, 9, dtype=torch.bool).triu(1),
    "memory_key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2]),
}
print("largest difference:", (decoder(target, source, **hidden) - swapped(target, source, **hidden)).abs().max().item())
torch.testing.assert_close(swapped(target, source, **hidden), decoder(target, source, **hidden))
assert swapped.state_dict().keys() == decoder.state_dict().keys()

# %% [markdown]
# Training does not tell them apart either: the same batches, the same losses.


# %%
def losses(model: nn.Module, steps: int = 5) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    values = []
    for _ in range(steps):
        loss = (model(target, source, **hidden) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


theirs, ours = losses(decoder), losses(swapped)
print("torch:", [round(loss, 5) for loss in theirs])
print("ours: ", [round(loss, 5) for loss in ours])
np.testing.assert_allclose(theirs, ours, rtol=1e-4)

# %% [markdown]
# What do you gain? Everything that reads this library's parts now reads your model. `ch.record` returns the attention
# weights of a layer, although nobody asked PyTorch for `need_weights`.

# %%
with ch.record(swapped.layers[1].block) as recorded:
    swapped(target, source, **hidden)
attended = recorded["cross_attention.part.attention"]
print("cross-attention of the second layer:", attended.shape)
assert attended.shape == (2, 4, 9, 6)
assert (attended[1, :, :, 4:] == 0).all()  # the padding of the second source

# %% [markdown]
# ## Depth: pre and post
#
# Why did the field turn from post-norm to pre-norm? Stack the layer, and look at two things before any training: how
# large the stream is after each layer, and how large the gradient is in each layer.


# %%
def stack_of(norm_position: str, n_layers: int) -> ch.DecoderLM:
    settings = {"d_model": 64, "n_heads": 4, "block_size": 32, "vocab_size": 32, "init": "xavier", "bias": True}
    return ch.DecoderLM(ch.ModelConfig(n_layers=n_layers, norm_position=norm_position, **settings))


def by_depth(model: ch.DecoderLM) -> tuple[list[float], list[float]]:
    """The size of the stream after each block, and the norm of the gradient of each block's feed-forward."""
    ids = torch.randint(32, (16, 32), generator=torch.Generator().manual_seed(0))
    sizes: list[float] = []

    def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
        sizes.append(output.square().mean().sqrt().item())

    hooks = [layer.register_forward_hook(keep) for layer in model.stack.blocks]
    logits = model(ids[:, :-1])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
    for hook in hooks:
        hook.remove()
    return sizes, [layer.feedforward.part.down.weight.grad.norm().item() for layer in model.stack.blocks]


depths = (2, 6, 12, 24, 48) if FULL else (2, 6, 12)
sizes, gradients = {}, {}
for norm_position in ("pre", "post"):
    for depth in depths:
        key = norm_position, depth
        sizes[key], gradients[key] = by_depth(stack_of(norm_position, depth))
        print(
            f"{norm_position:4} {depth:2} layers: stream {sizes[key][0]:.2f} to {sizes[key][-1]:.2f}, gradient of the "
            f"first layer {gradients[key][0]:.4f}, of the last {gradients[key][-1]:.4f}"
        )

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for norm_position in ("pre", "post"):
    layers = range(1, depths[-1] + 1)
    left.plot(layers, sizes[norm_position, depths[-1]], marker=".", label=f"{norm_position}-norm")
    right.plot(layers, gradients[norm_position, depths[-1]], marker=".", label=f"{norm_position}-norm")
left.set(xlabel="layer", ylabel="size of the stream (RMS)")
right.set(xlabel="layer", ylabel="norm of the gradient", yscale="log")
left.legend()
plt.show()

# %% [markdown]
# The left picture: post-norm brings the stream back to size 1 after every layer. Pre-norm lets it grow, about as the
# square root of the depth, because every sublayer adds something of about the same size in a direction of its own.
#
# The right picture is the reason why post-norm needs a warm-up. Its last layers get the full gradient however deep the
# stack is. In a pre-norm stack the final norm divides by the size of the grown stream, so that the gradient of
# each layer shrinks as the stack deepens. Xiong et al. (2020) derive a factor of $1/\sqrt{L}$ between the two. Ours:

# %%
for depth in depths:
    ratio = gradients["post", depth][-1] / gradients["pre", depth][-1]
    print(f"{depth:2} layers: last layer, post / pre = {ratio:.2f}; square root of the depth {depth**0.5:.2f}")
    assert 0.5 < ratio / depth**0.5 < 2
    np.testing.assert_allclose(sizes["post", depth], 1, atol=0.01)
    assert sizes["pre", depth][-1] > 1.5 * sizes["pre", depth][0]

# %% [markdown]
# ## Exercises
#
# **1.** Change the last target token, `x[0, 2]`, and compute the layer again. Which of the outputs move? And which move
# when the last source token, `memory[0, 3]`, changes?

# %% tags=["hide-cell"]
other_x, other_memory = x.copy(), memory.copy()
other_x[0, 2] += 1
other_memory[0, 3] += 1
moved_by_target = np.abs(decoder_layer(other_x, memory) - out).max(-1)[0] > 0
moved_by_source = np.abs(decoder_layer(x, other_memory) - out).max(-1)[0] > 0
print("moved by the last target:", moved_by_target, " by the last source token:", moved_by_source)
assert moved_by_target.tolist() == [False, False, True]
assert moved_by_source.all()

# %% [markdown]
# **2.** Put the source tokens into another order. What changes in the output? What does that say about who has to know
# the source's word order?

# %% tags=["hide-cell"]
shuffled = decoder_layer(x, memory[:, [2, 0, 3, 1]])
np.testing.assert_allclose(shuffled, out, atol=1e-12)  # nothing: cross-attention is a sum over a set
# Word order must be in the memory's vectors already: the encoder's positions put it there.

# %% [markdown]
# **3.** How many parameters has an *encoder* layer of the same size? And the six encoder and six decoder layers of the
# first Transformer together?

# %% tags=["hide-cell"]
encoder_layer = attention_parameters + feedforward_parameters + 2 * 2 * 512
print(f"encoder layer {encoder_layer:,}, six of both {6 * (encoder_layer + by_hand):,}")
assert encoder_layer == count(nn.TransformerEncoderLayer(512, 8, 2048)) == 3_152_384
whole = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
assert count(whole) == 6 * (encoder_layer + by_hand) + 2 * 2 * 512  # and the two norms that `nn.Transformer` adds

# %% [markdown]
# ## Where this stands in the house
#
# - [the NumPy twin's example](../src/clearhead/reference/example.py) is your trace; [the
#   twin](../src/clearhead/reference) computes whole models so, and every part is tested against it.
# - [block](../src/clearhead/parts/block.py), [sublayer](../src/clearhead/parts/sublayer.py),
#   [attention](../src/clearhead/parts/attention.py) and [feed-forward](../src/clearhead/parts/feedforward.py) are the
#   layer in PyTorch. Residual, norm and dropout stand once, in `Sublayer`.
# - [the drop-in](../src/clearhead/interop/torch_layers/decoder_layer.py) and
#   [the weights' table](../src/clearhead/interop/torch_layers/weights.py).
# - In [the studio](../docs/studio.md), the X-ray shows the same rows for your own model and your own sentence.
