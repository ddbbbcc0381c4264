# %% [markdown]
# # 3. LayerNorm by hand
#
# Every Transformer normalizes, two or more times per layer, and it does so with LayerNorm or RMSNorm, never with the
# BatchNorm of image models. All three do the same thing: subtract a mean, divide by a deviation. They differ in *which
# numbers the mean is taken over*. That choice decides whether padding, the batch's size, or even the future can change
# what a token becomes.

# %%
import os
import statistics

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from clearhead.data import evaluation_batches, stories, training_batch
from clearhead.parts import NORMS

FULL = os.environ.get("SIZE") == "full"
torch.manual_seed(1)
torch.set_printoptions(precision=3, sci_mode=False)

# %% [markdown]
# ## Along the last axis
#
# Take a batch of texts, `(B, T, D)`. LayerNorm looks at one token of one text, at its `D` numbers:
#
# $$ y = \frac{x - \text{mean}}{\sqrt{\text{variance} + \epsilon}} \cdot \text{weight} + \text{bias} $$
#
# The variance is the mean of the squared differences (divided by `D`, not `D - 1`); `weight` and `bias` are learned,
# one number for each of the `D` features, and start at 1 and 0.

# %%
B, T, D = 3, 5, 16
x = torch.randn(B, T, D) * 4 + 2
eps = 1e-5

mean = x.mean(dim=-1, keepdim=True)  # (B, T, 1)
variance = (x - mean).square().mean(dim=-1, keepdim=True)
by_hand = (x - mean) / torch.sqrt(variance + eps)

torch.testing.assert_close(by_hand, nn.LayerNorm(D)(x))
torch.testing.assert_close(by_hand, NORMS["layernorm"](D, eps)(x))
print("means of the tokens before:     ", x.mean(-1)[0])
print("means and deviations afterwards:", by_hand.mean(-1)[0], by_hand.std(-1, correction=0)[0])
with_d_minus_1 = (x - mean) / torch.sqrt(x.var(dim=-1, keepdim=True) + eps)  # torch's var divides by D - 1
print(f"with torch's own var: off by {(with_d_minus_1 - by_hand).abs().max():.2f}")
assert (with_d_minus_1 - by_hand).abs().max() > 0.01

# %% [markdown]
# The last line is a mistake that many hand-written norms have: `x.var()` and `x.std()` divide by `D - 1` unless told
# otherwise. Such a model trains well, and cannot take weights from any other program.
#
# ## Along the other axes
#
# BatchNorm takes feature 7 of *all* tokens of *all* texts and normalizes that. In evaluation it uses running averages
# of what it saw in training instead. Written by hand, only `dim` changes.

# %%


def normalize(x, dim):
    centered = x - x.mean(dim=dim, keepdim=True)
    return centered / torch.sqrt(centered.square().mean(dim=dim, keepdim=True) + eps)


batch_norm = nn.BatchNorm1d(D)
torch.testing.assert_close(normalize(x, -1), nn.LayerNorm(D)(x))
torch.testing.assert_close(normalize(x, (0, 1)), batch_norm(x.mT).mT)  # it wants (B, D, T)

figure, axes = plt.subplots(1, 3, figsize=(8, 2.6), sharey=True)
for axis, share, title in zip(
    axes,
    (lambda b, t, d: b == 0 and t == 1, lambda b, t, d: d == 3, lambda b, t, d: b == 0 and d == 3),
    ("LayerNorm: dim=-1", "BatchNorm: dim=(0, 1)", "over time: dim=1"),
    strict=True,
):
    cells = torch.tensor([[float(share(b, t, d)) for d in range(8)] for b in range(2) for t in range(4)])
    axis.imshow(cells, cmap="Blues", vmin=0, vmax=1.3)
    axis.set(title=title, xlabel="feature", xticks=range(8))
    axis.set_yticks(range(8), [f"text {b}, token {t}" for b in range(2) for t in range(4)])
    axis.hlines(3.5, -0.5, 7.5, color="gray")
plt.show()

# %% [markdown]
# The blue cells share one mean. In the left picture they belong to one token. In the middle they belong to everybody.
#
# ## Padding and small batches
#
# So with BatchNorm a text's result depends on its neighbors, and padding is a neighbor. Here is one text, once alone in
# its batch, once beside a text that is mostly padding.

# %%
text = torch.randn(1, T, D)
padded = torch.zeros(1, T, D)
padded[:, 0] = torch.randn(D)
together = torch.cat((text, padded))
for name, dim in (("LayerNorm", -1), ("BatchNorm", (0, 1))):
    moved = (normalize(together, dim)[:1] - normalize(text, dim)).abs().max()
    print(f"{name}: moved by its neighbor's padding by {moved:.3f}")
    assert (moved < 1e-5) == (name == "LayerNorm")

# %% [markdown]
# A batch of one text with one token, which is what generation feeds a model at each step, has no spread at all over the
# batch. In training PyTorch refuses it. In evaluation it takes running averages, so that the same model computes two
# different functions.

# %%
single = torch.randn(1, D)
try:
    batch_norm.train()(single)
    refused = False
except ValueError as error:
    refused = True
    print("BatchNorm:", error)
assert refused
assert nn.LayerNorm(D)(single).std(correction=0) > 0.99

difference = (batch_norm.train()(x.mT) - batch_norm.eval()(x.mT)).abs().max()
print(f"BatchNorm, training against evaluation: {difference:.2f} apart")
assert difference > 0.5
layer_norm = nn.LayerNorm(D)
assert torch.equal(layer_norm.train()(x), layer_norm.eval()(x))

# %% [markdown]
# ## Over the time axis the future leaks
#
# Worse for a language model is a norm whose mean runs over *time*. One gets it from a wrong `dim`, from
# `nn.LayerNorm((T, D))`, which averages over both axes, or from BatchNorm. The mean of a text contains its last token,
# so the first token's result does, too. The causal mask cannot help: the information goes around it.
#
# The exact way to see it: take the gradient of one token's output by every input. Where it is not zero, that input was
# read.

# %%


def reads(norm, token=1):
    """Which tokens the norm's output at one token depends on."""
    x = torch.randn(1, T, D, requires_grad=True)
    (norm(x)[0, token] * torch.arange(1.0, D + 1)).sum().backward()
    return (x.grad[0].abs().amax(-1) > 0).int().tolist()


torch.manual_seed(2)
for name, norm in (
    ("dim=-1", lambda x: normalize(x, -1)),
    ("dim=1", lambda x: normalize(x, 1)),
    ("nn.LayerNorm((T, D))", nn.LayerNorm((T, D))),
    ("BatchNorm", lambda x: normalize(x, (0, 1))),
):
    print(f"{name:22} token 1 reads tokens {reads(norm)}")
assert reads(lambda x: normalize(x, -1)) == [0, 1, 0, 0, 0]
assert reads(nn.LayerNorm((T, D))) == [1, 1, 1, 1, 1]

# %% [markdown]
# In a whole model nobody looks at that gradient. The loss falls, as always. Put such a norm into a model whose masks
# are right, and let the doctor look:

# %%


class TimeNorm(nn.Module):
    """A layer norm over the wrong axis."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        centered = x - x.mean(dim=1, keepdim=True)
        return centered / torch.sqrt(centered.square().mean(dim=1, keepdim=True) + self.eps) * self.weight + self.bias


def replace_norms(module: nn.Module, width: int) -> nn.Module:
    for name, child in module.named_children():
        if isinstance(child, type(NORMS["layernorm"](width, eps))):
            setattr(module, name, TimeNorm(width))
        else:
            replace_norms(child, width)
    return module


config = ch.ModelConfig(vocab_size=64, block_size=32, n_layers=2, n_heads=2, d_model=32)
healthy = ch.DecoderLM(config)
leaky = replace_norms(ch.DecoderLM(config), 32)
spec = ch.doctor.Spec(kind="causal")
report = ch.doctor.check(leaky, spec)
print(report)
assert report.verdict == "faulty"
assert any(finding.status == "fail" for finding in report.findings)
assert ch.doctor.check(healthy, spec).verdict == "healthy"

# %% [markdown]
# ## RMSNorm
#
# Is the mean needed at all? RMSNorm leaves it out. It divides by the root of the mean square and has no bias; Llama,
# Qwen and most newer models use it.

# %%
root = torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps)
torch.testing.assert_close(x / root, F.rms_norm(x, (D,), eps=eps))
torch.testing.assert_close(x / root, NORMS["rmsnorm"](D, eps)(x))
centered = x - x.mean(-1, keepdim=True)
torch.testing.assert_close(normalize(x, -1), NORMS["rmsnorm"](D, eps)(centered))  # LayerNorm is RMSNorm of x - mean
sizes = {name: sum(p.numel() for p in NORMS[name](512, eps).parameters()) for name in ("layernorm", "rmsnorm")}
print("parameters at width 512:", sizes)
assert sizes == {"layernorm": 1024, "rmsnorm": 512}

# %% [markdown]
# What does it cost? Measure: the same small model, the same batches, both norms, several seeds. One run of each would
# not do, because two runs of the *same* model that differ only in their seed differ as well.

# %%
steps, width, n_layers, seeds = (1000, 96, 3, (1, 2, 3)) if FULL else (60, 48, 1, (1, 2))
text = stories.text(600_000)
stoi = {character: number for number, character in enumerate(sorted(set(text)))}
ids = torch.tensor([stoi[character] for character in text])
train, val = ids[:500_000].numpy(), ids[500_000:].numpy()


def train_model(norm, seed):
    """The held-out loss of a model that was trained with this norm, and its training losses."""
    config = ch.ModelConfig(vocab_size=len(stoi), block_size=64, n_layers=n_layers, n_heads=4, d_model=width, norm=norm)
    model = ch.DecoderLM(config, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 20) * (1 - step / steps)
        batch = training_batch(train, block_size=64, batch_size=16, seed=seed, step=step)
        loss = F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        held_out = [
            F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten()).item()
            for batch in evaluation_batches(val, block_size=64, batch_size=64, limit=16_384 if FULL else 4_096)
        ]
    return statistics.mean(held_out), losses


results = {norm: [train_model(norm, seed) for seed in seeds] for norm in ("layernorm", "rmsnorm")}
means = {}
for norm, runs in results.items():
    held_out = [loss for loss, _ in runs]
    means[norm] = statistics.mean(held_out)
    print(f"{norm:9}: held-out loss {', '.join(f'{loss:.3f}' for loss in held_out)}; mean {means[norm]:.3f}")
spread = max(statistics.stdev([loss for loss, _ in runs]) for runs in results.values())
print(f"rmsnorm - layernorm: {means['rmsnorm'] - means['layernorm']:+.3f}; seeds alone deviate by {spread:.3f}")
assert abs(means["rmsnorm"] - means["layernorm"]) < 0.1

figure, axis = plt.subplots(figsize=(7, 3.4))
for norm, style in (("layernorm", "-"), ("rmsnorm", "--")):
    mean_curve = torch.tensor([losses for _, losses in results[norm]]).mean(0)
    axis.plot(mean_curve, style, linewidth=1, label=norm)
axis.set(xlabel="step", ylabel="loss (nats per character)", title="Two norms, mean over seeds")
axis.legend()
plt.show()

# %% [markdown]
# The two curves lie on each other: at this size, leaving out the mean costs nothing that a few seeds could show. What
# RMSNorm saves is a mean, a subtraction and a bias. Whether that is faster depends on the kernel: without a fused one
# it may well be slower.
#
# ## Exercises
#
# **1.** Which changes of a token does each norm not notice? Try `3 * x` and `x + 3`.

# %% tags=["hide-cell"]
for name in ("layernorm", "rmsnorm"):
    norm = NORMS[name](D, 1e-12)
    ignores_scale = torch.allclose(norm(3 * x), norm(x), atol=1e-5)
    ignores_shift = torch.allclose(norm(x + 3), norm(x), atol=1e-4)
    print(f"{name}: ignores scale {ignores_scale}, ignores shift {ignores_shift}")
    assert ignores_scale
    assert ignores_shift == (name == "layernorm")
# Both ignore the scale, which is their use: a residual stream may grow with depth, and each sublayer still reads
# numbers of the same size. Only LayerNorm ignores what all features have in common.

# %% [markdown]
# **2.** The learned `weight` and `bias` of a norm can be moved into the linear layer that follows it. Do it, and show
# that the numbers are equal. What does this say about biases in a norm before a linear layer with a bias?

# %% tags=["hide-cell"]
norm, linear = nn.LayerNorm(D), nn.Linear(D, 8)
with torch.no_grad():
    norm.weight.normal_(1, 0.3)
    norm.bias.normal_()
plain, folded = nn.LayerNorm(D, elementwise_affine=False), nn.Linear(D, 8)
with torch.no_grad():
    folded.weight.copy_(linear.weight * norm.weight)  # (8, D) * (D,)
    folded.bias.copy_(linear.bias + linear.weight @ norm.bias)
torch.testing.assert_close(folded(plain(x)), linear(norm(x)))
# They add nothing that the linear layer cannot do itself; they only change how training gets there.

# %% [markdown]
# **3.** Epsilon keeps a token of zeros from becoming NaN. Scale `x` by $10^{-1}$ down to $10^{-4}$ and watch the
# deviation of the output. When does epsilon matter, and what follows for loading weights with another epsilon?

# %% tags=["hide-cell"]
deviations = {}
for exponent in range(5):
    tiny = torch.randn(4, D) * 10.0**-exponent
    deviations[exponent] = nn.LayerNorm(D)(tiny).std(correction=0).item()
    print(f"inputs of size 1e-{exponent}: output deviates by {deviations[exponent]:.3f}")
assert nn.LayerNorm(D)(torch.zeros(1, D)).abs().max() == 0
assert deviations[1] > 0.99
assert deviations[4] < 0.1
# Where the variance is not far above epsilon. 1e-5 is felt at inputs around 0.003; embeddings drawn with a deviation of
# 0.02 have a variance of 0.0004, so 1e-5 moves a first norm by about 1 %, and 1e-12 does not. Take epsilon from the
# model whose weights you load.

# %% [markdown]
# ## Where this stands in the house
#
# - [norms](../src/clearhead/parts/norms.py): the three norms, and one dict line for each.
# - [the same in NumPy](../src/clearhead/reference/norms.py), with equations and gradients.
# - [sublayer](../src/clearhead/parts/sublayer.py): where a norm stands, before the sublayer or after the sum.
# - [the checks](../docs/checks.md) of the doctor, which follow dependencies through a whole model.
# - In [the studio](../docs/studio.md), start two trainings that differ in `model.norm` and lay their curves over each
#   other.
#
# Next: [where am I](04_where_am_i.py).
