# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---
# %% [markdown]
# # 9. Distrust success
#
# A Transformer with a fault in it seldom crashes. It trains, its loss falls, and it writes something. In this lesson
# we plant eight faults, one for each complaint that people bring to a forum:
#
# 1. the loss stays flat at ln V,
# 2. it falls, and then it is NaN,
# 3. the text repeats itself,
# 4. the text is random characters,
# 5. the answer is always the same token,
# 6. the loss is excellent and the text is garbage,
# 7. the translation ignores its source,
# 8. the batch changes the answer.
#
# Each time we look at the symptom, let the one tool name the fault that is able to find it, mend it, and look again:
# the symptom must be gone, and the tool silent. The point is to learn *which* tool. An examination of the model cannot
# see a fault of the training loop, and a perfect curve says nothing about the code that samples.

# %%
import math
import os
from itertools import pairwise

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

import clearhead as ch
from clearhead.data import stories
from clearhead.doctor.catalogue.curves import signs
from clearhead.inspection import predict

FULL = os.environ.get("SIZE") == "full"
torch.manual_seed(1)

text = stories.text(200_000, 1)
characters = sorted(set(text))
V = len(characters)
number = {character: i for i, character in enumerate(characters)}
data = torch.tensor([number[character] for character in text])
floor = stories.entropy_per_character()
print(
    f"{len(text):,} characters, {V} different; ln V = {math.log(V):.3f}; "
    f"nobody can get below {floor:.3f} nats on new text"
)

# %% [markdown]
# ## The healthy model
#
# A small GPT in plain PyTorch, as one would write it oneself. `Attention` reads a memory where one is handed to it,
# so the same class will serve a translator. It returns its keys and values, which the next call takes as `past`: a
# cache.


# %%
class Attention(nn.Module):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def allowed(self, T_q, T_k):
        """Who may attend to whom: query i sees the keys up to its own position."""
        return torch.ones(T_q, T_k, dtype=torch.bool).tril(T_k - T_q)

    def split(self, x):
        return x.view(*x.shape[:2], self.n_heads, -1).transpose(1, 2)  # (B, H, T, K)

    def forward(self, x, memory=None, past=None):
        read = x if memory is None else memory
        q, k, v = self.split(self.query(x)), self.split(self.key(read)), self.split(self.value(read))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if memory is None:
            scores = scores.masked_fill(~self.allowed(q.shape[2], k.shape[2]), -math.inf)
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape)), (k, v)


class Block(nn.Module):
    def __init__(self, attention=Attention, d_model=48):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attention = attention(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))

    def forward(self, x, past=None):
        mixed, present = self.attention(self.norm1(x), past=past)
        x = x + mixed
        return x + self.mlp(self.norm2(x)), present


class SmallGPT(nn.Module):
    def __init__(self, attention=Attention, vocab_size=V, d_model=48, block_size=96, n_layers=2):
        super().__init__()
        self.token, self.position = nn.Embedding(vocab_size, d_model), nn.Embedding(block_size, d_model)
        self.blocks = nn.ModuleList([Block(attention, d_model) for _ in range(n_layers)])
        self.norm, self.head = nn.LayerNorm(d_model), nn.Linear(d_model, vocab_size)
        self.apply(self.initialize)

    def initialize(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def first_position(self, cache):
        return 0 if cache is None else cache[0][0].shape[2]

    def read(self, ids, cache=None):
        first = self.first_position(cache)
        x = self.token(ids) + self.position(torch.arange(first, first + ids.shape[1]))
        presents = []
        for i, block in enumerate(self.blocks):
            x, present = block(x, None if cache is None else cache[i])
            presents.append(present)
        return self.norm(x), presents

    def body(self, ids):
        return self.read(ids)[0]

    def forward(self, ids, cache=None):
        x, presents = self.read(ids, cache)
        return self.head(x), presents

    def choose(self, logits):
        """Draw the next token, (B, V) -> (B, 1)."""
        return torch.multinomial(logits.softmax(-1), 1)

    @torch.no_grad()
    def generate(self, ids, max_new_tokens=60):
        logits, cache = self(ids)
        for _ in range(max_new_tokens):
            ids = torch.cat([ids, self.choose(logits[:, -1])], 1)
            logits, cache = self(ids[:, -1:], cache)
        return ids


# %% [markdown]
# The training loop keeps its losses, and a function shows what a model writes.


# %%
def batch(step, rows=8, T=48):
    """The batch of a step: inputs and the same shifted by one. The same step always gets the same batch."""
    starts = torch.randint(len(data) - T - 1, (rows,), generator=torch.Generator().manual_seed(step))
    windows = torch.stack([data[i : i + T + 1] for i in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


def loss_of(model, ids, targets):
    return F.cross_entropy(model(ids)[0].flatten(0, 1), targets.flatten(), ignore_index=-100)


def train(model, steps, batch=batch, loss_of=loss_of, learning_rate=3e-3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    losses = []
    for step in range(steps):
        loss = loss_of(model, *batch(step))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def write(model, prompt="Lucy was a ", seed=1, **options):
    torch.manual_seed(seed)
    ids = torch.tensor([[number[character] for character in prompt]])
    return "".join(characters[i] for i in model.generate(ids, **options)[0].tolist())


def curve(losses):
    """The losses as the log of a training, which `signs` reads as the doctor does."""
    return [{"kind": "step", "step": i + 1, "loss": loss, "learning_rate": 3e-3} for i, loss in enumerate(losses)]


steps = 1500 if FULL else 220
healthy = SmallGPT()
fresh_loss = loss_of(healthy, *batch(0)).item()
assert abs(fresh_loss - math.log(V)) < 0.1, fresh_loss
healthy_losses = train(healthy, steps)
print(f"fresh {fresh_loss:.3f}, after {steps} steps {healthy_losses[-1]:.3f}")
print(write(healthy))
assert healthy_losses[-1] < 0.6 * fresh_loss

# %% [markdown]
# The doctor has nothing against it. It examines two copies of the model, in about a second, before or after training:

# %%
report = ch.doctor.check(SmallGPT(), ch.doctor.Spec(kind="causal"))
print(report.summary)
assert not [finding for finding in report.findings if finding.status == "fail"], report

# %% [markdown]
# ## 1. The loss stays flat at ln V
#
# This training loop clears the gradient between `backward` and `step`. Nothing complains: the optimizer makes a step
# of length zero.


# %%
def train_flat(model, steps, learning_rate=3e-3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    losses = []
    for step in range(steps):
        loss = loss_of(model, *batch(step))
        loss.backward()
        optimizer.zero_grad()  # should stand before backward
        optimizer.step()
        losses.append(loss.item())
    return losses


flat_losses = train_flat(SmallGPT(), 12)
print(f"from {flat_losses[0]:.3f} to {flat_losses[-1]:.3f}; ln V = {math.log(V):.3f}")
assert all(abs(loss - math.log(V)) < 0.1 for loss in flat_losses)

# %% [markdown]
# The model has no fault, so `doctor.check` can only say that it is healthy. `doctor.watch` looks at the *loop*: two
# steps are enough. For a script, `clearhead doctor train train.py` does the same.


# %%
def findings(report):
    """The ids of what a report finds, printed as well."""
    lines = [f"{finding.status.upper()} {finding.id} {finding.title}" for finding in report.findings]
    print("\n".join(lines) or report.summary)
    return [finding.id for finding in report.findings]


model = SmallGPT()
with ch.doctor.watch(model) as watched:
    train_flat(model, 2)
assert "T02" in findings(watched.report())

# %% [markdown]
# Mended, with `zero_grad` in its place, the loop is `train`, which trained the healthy model. The doctor watches it
# and is silent, and in as many steps the loss falls.

# %%
with ch.doctor.watch(model) as watched:
    train(model, 2)
assert findings(watched.report()) == []
mended_losses = train(SmallGPT(), 12)
print(f"from {mended_losses[0]:.3f} to {mended_losses[-1]:.3f}")
assert mended_losses[-1] < min(flat_losses) - 0.3
disappeared = {"1 loss after 12 steps": (flat_losses[-1], mended_losses[-1])}  # with the fault, and mended

# %% [markdown]
# ## 2. It falls, and then it is NaN
#
# In a chat corpus only the answers are counted; every other target is -100. The mean over the answers is taken by
# hand, as a product with zeros and ones. One batch, the 31st, happens to hold no answer at all: its mean is 0/0, the
# gradient is NaN, and after one step so is every weight.


# %%
def batch_of_chats(step):
    ids, targets = batch(step)
    return ids, targets.where(torch.tensor(step != 30), -100)


def mean_of_answers(model, ids, targets):
    losses = F.cross_entropy(model(ids)[0].flatten(0, 1), targets.flatten().clamp(min=0), reduction="none")
    is_answer = (targets.flatten() != -100).float()
    return (losses * is_answer).sum() / is_answer.sum()


nan_losses = train(SmallGPT(), 36, batch_of_chats, mean_of_answers)
print([round(loss, 2) for loss in nan_losses[27:]])
assert all(map(math.isfinite, nan_losses[:30]))
assert not any(map(math.isfinite, nan_losses[30:]))

# %% [markdown]
# No examination of the first two steps can see this. The *curve* knows the step, and because a batch is a function of
# its step, we can have that batch again and look at it, this time watched:

# %%
print(*signs(curve(nan_losses), vocab_size=V), sep="\n")
assert "the first was step 31" in signs(curve(nan_losses))[0]

model = SmallGPT()
with ch.doctor.watch(model) as watched:
    train(model, 2, lambda step: batch_of_chats(30 + step), mean_of_answers)
assert "R01" in findings(watched.report())
assert (batch_of_chats(30)[1] == -100).all()  # and this is why


# %% [markdown]
# Mended: divide the sum by the number of targets, and by one if there is none.


# %%
def mean_of_any(model, ids, targets):
    losses = F.cross_entropy(model(ids)[0].flatten(0, 1), targets.flatten().clamp(min=0), reduction="none")
    is_answer = (targets.flatten() != -100).float()
    return (losses * is_answer).sum() / is_answer.sum().clamp(min=1)


mended_losses = train(SmallGPT(), 36, batch_of_chats, mean_of_any)
print([round(loss, 2) for loss in mended_losses[27:]])
assert all(map(math.isfinite, mended_losses))
assert mended_losses[30] == 0
disappeared["2 loss after 36 steps"] = nan_losses[-1], mended_losses[-1]
assert "no finite loss" not in " ".join(signs(curve(mended_losses)))

# %% [markdown]
# Watched, the batches around the empty one are healthy. On the empty one itself R01 is gone, and the doctor says that
# the gradient is cut. So it is, there: where nothing is asked, nothing can be learned.

# %%
model = SmallGPT()
with ch.doctor.watch(model) as watched:
    train(model, 2, lambda step: batch_of_chats((29, 31)[step]), mean_of_any)
assert findings(watched.report()) == []
with ch.doctor.watch(model) as watched:
    train(model, 2, lambda step: batch_of_chats(30 + step), mean_of_any)
assert findings(watched.report()) == ["I06"]

# %% [markdown]
# The same batch under torch's own mean, `F.cross_entropy(..., ignore_index=-100)`, also has a loss of NaN, but in
# torch 2.13 its gradient is zero: the curve has a hole, and the weights survive.

# %%
model = SmallGPT()
loss = loss_of(model, *batch_of_chats(30))
loss.backward()
print(loss.item(), max(weight.grad.abs().max().item() for weight in model.parameters()))
assert loss.isnan()
assert all((weight.grad == 0).all() for weight in model.parameters())

# %% [markdown]
# (`clearhead train` and `ch.fit` leave out a step without a finite loss and gradient, count it, and give up after ten
# in a row.)
#
# ## 3. The text repeats itself
#
# The batch forgets its shift: the targets are the inputs. The model learns to say what it has just read.


# %%
def batch_without_shift(step):
    ids, _ = batch(step)
    return ids, ids


def repeated(text):
    """The share of the written characters that equal the one before."""
    return sum(a == b for a, b in pairwise(text[11:])) / (len(text) - 12)


copying = SmallGPT()
copying_losses = train(copying, steps // 2, batch_without_shift)
copied = write(copying)
print(f"loss {copying_losses[-1]:.3f}\n{copied}")
assert repeated(copied) > 0.5, repeated(copied)

# %% [markdown]
# The loss is wonderful: in half the steps it is far below the healthy model's. What does the loss *ask for*? The
# doctor reads that from the gradient that it sends into the logits. `watch` does so in a loop, `doctor.xray` for a
# loss at hand.

# %%
with ch.doctor.watch(copying) as watched:
    train(copying, 2, batch_without_shift)
assert "D01" in findings(watched.report())
assert copying_losses[-1] < healthy_losses[steps // 2]

# %% [markdown]
# Mended, with targets that are shifted by one, and trained again for as long:

# %%
shifted_model = SmallGPT()
shifted_losses = train(shifted_model, steps // 2)
shifted_text = write(shifted_model)
print(f"loss {shifted_losses[-1]:.3f}\n{shifted_text}")
assert repeated(shifted_text) < 0.3, repeated(shifted_text)
with ch.doctor.watch(shifted_model) as watched:
    train(shifted_model, 2)
assert findings(watched.report()) == []
disappeared["3 share of repeated characters"] = repeated(copied), repeated(shifted_text)

# %% [markdown]
# Not every repetition is a fault. A small model that always takes the *likeliest* character walks in circles, healthy
# as it is:

# %%
greedy = SmallGPT()
greedy.load_state_dict(healthy.state_dict())
greedy.choose = lambda logits: logits.argmax(-1, keepdim=True)
print(write(greedy))

# %% [markdown]
# ## 4. The text is random characters
#
# The loss is right, the weights are those of the healthy model, and the text is noise. Someone took the softmax
# before handing "logits" to a sampler that takes the softmax itself.


# %%
class Twice(SmallGPT):
    def choose(self, logits):
        return super().choose(logits.softmax(-1))


twice = Twice()
twice.load_state_dict(healthy.state_dict())
noise = write(twice)
print(repr(noise))


# %% [markdown]
# Ask the model what it thinks of its own text. `predict` gives the surprisal of each character: what a model writes
# itself should surprise it about as much as the text that it learned from, not more.


# %%
def surprisal(model, text):
    ids = [number[character] for character in text]
    prediction = predict(model, [torch.tensor([ids[:-1]])], list(text[:-1]), ids[1:], lambda id, _: characters[id])
    return prediction.loss


real = text[:72]
for label, words in (("real text", real), ("this text", noise)):
    print(f"{label:22} {surprisal(twice, words):.2f} nats per character")
assert surprisal(twice, noise) > surprisal(twice, real) + 0.8

# %% [markdown]
# So the model is right and the writer is wrong. The doctor says the same: it runs `generate` and compares what is
# drawn with the softmax of the logits.

# %%
assert "K11" in findings(ch.doctor.check(twice, ch.doctor.Spec(kind="causal"), only=["K11"]))

# %% [markdown]
# Mended: the same weights, and one softmax.

# %%
once = SmallGPT()
once.load_state_dict(twice.state_dict())
once_text = write(once)
print(f"{once_text!r}: {surprisal(once, once_text):.2f} nats per character")
assert abs(surprisal(once, once_text) - surprisal(once, real)) < 0.8
assert findings(ch.doctor.check(once, ch.doctor.Spec(kind="causal"), only=["K11"])) == []
disappeared["4 surprisal of its own text"] = surprisal(twice, noise), surprisal(once, once_text)


# %% [markdown]
# ## 5. Always the same token
#
# The starts of the inputs and the starts of the targets are drawn separately. What follows has then nothing to do
# with what was read, and the best that a model can do is to know how frequent each character is.


# %%
def batch_from_two_places(step):
    return batch(2 * step)[0], batch(2 * step + 1)[1]


frequencies = torch.bincount(data, minlength=V) / len(data)
unigram = -(frequencies * frequencies.log()).nansum().item()
constant = SmallGPT()
constant_losses = train(constant, steps // 2, batch_from_two_places)
likeliest = constant(batch(0)[0])[0].argmax(-1)
print(f"loss {sum(constant_losses[-20:]) / 20:.3f}; the frequencies alone give {unigram:.3f}")
print("the likeliest next character, everywhere:", {characters[i] for i in likeliest.unique().tolist()})
assert abs(sum(constant_losses[-20:]) / 20 - unigram) < 0.15
assert (likeliest == frequencies.argmax()).float().mean() > 0.95  # the space

# %% [markdown]
# The curve has a plateau that is not at ln V but at the entropy of the frequencies: that alone is a diagnosis. The
# doctor watches two steps and says why. It warns rather than fails: nothing in the loop contradicts itself, and data
# whose tokens really are independent would look the same.

# %%
with ch.doctor.watch(constant) as watched:
    train(constant, 2, batch_from_two_places)
assert "D12" in findings(watched.report())

# %% [markdown]
# Mended, with inputs and targets from the same place, and trained again for as long:

# %%
varied_model = SmallGPT()
varied_losses = train(varied_model, steps // 2)
varied = varied_model(batch(0)[0])[0].argmax(-1)
print(f"loss {sum(varied_losses[-20:]) / 20:.3f}; {len(varied.unique())} different characters are the likeliest")
assert sum(varied_losses[-20:]) / 20 < unigram - 0.3
assert len(varied.unique()) > 5
with ch.doctor.watch(varied_model) as watched:
    train(varied_model, 2)
assert findings(watched.report()) == []
disappeared["5 characters that are the likeliest somewhere"] = len(likeliest.unique()), len(varied.unique())


# %% [markdown]
# ## 6. The loss is excellent and the text is garbage
#
# The most famous one: a decoder's mask that lets every token see too much. Here the triangle is one diagonal too
# wide. Each token sees the next one, which is the answer.


# %%
class Peeks(Attention):
    def allowed(self, T_q, T_k):
        return torch.ones(T_q, T_k, dtype=torch.bool).tril(T_k - T_q + 1)


torch.manual_seed(1)
cheat = SmallGPT(Peeks)
cheat_losses = train(cheat, steps, lambda step: batch(step, T=24), learning_rate=1e-2)
print(f"loss {cheat_losses[-1]:.3f}, healthy {healthy_losses[-1]:.3f}\n{write(cheat)}")
assert cheat_losses[-1] < 0.25 * healthy_losses[-1]

# %% [markdown]
# Two tools find it. On this corpus the curve does, because its entropy is known: a validation loss below the floor is
# impossible (the text would have to be shorter than it is). On your own text nobody knows the floor, and the doctor
# does not need it:

# %%
report = ch.doctor.check(SmallGPT(Peeks), ch.doctor.Spec(kind="causal"), only=["M01", "M06"])
assert "M06" in findings(report)
finding = report["M06"]
print(finding.where.module, finding.where.line, finding.evidence.witness, sep="\n")
if FULL:
    assert cheat_losses[-1] < floor

# %% [markdown]
# Mended, with the triangle's diagonal in its place, and trained again in the same way: a worse loss, and a better
# text. How much each loss is worth shows if we let the model predict without the future, one character at a time. The
# mended one predicts as well as before; the cheat's loss was worth nothing.


# %%
def loss_without_the_future(model, ids, targets):
    with torch.no_grad():
        honest = torch.cat([model(ids[:, : t + 1])[0][:, -1:] for t in range(ids.shape[1])], 1)
    return F.cross_entropy(honest.flatten(0, 1), targets.flatten()).item()


torch.manual_seed(1)
mended = SmallGPT()
mended_losses = train(mended, steps, lambda step: batch(step, T=24), learning_rate=1e-2)
print(f"loss {mended_losses[-1]:.3f}\n{write(mended)}")
windows = batch(10**6, T=24)
worth = {name: loss_without_the_future(model, *windows) for name, model in (("cheat", cheat), ("mended", mended))}
for name, model in (("cheat", cheat), ("mended", mended)):
    print(f"{name:7} loss {loss_of(model, *windows).item():.2f}, without the future {worth[name]:.2f}")
assert worth["cheat"] > loss_of(cheat, *windows) + 1
assert abs(worth["mended"] - loss_of(mended, *windows)) < 1e-4
assert mended_losses[-1] > floor
assert findings(ch.doctor.check(SmallGPT(), ch.doctor.Spec(kind="causal"), only=["M01", "M06"])) == []
disappeared["6 loss without the future"] = worth["cheat"], worth["mended"]


# %% [markdown]
# ## 7. The translation ignores its source
#
# A translator for the simplest language: ten digits, and the translation is the sentence itself. Its encoder may look
# in both directions, so what was the fault of symptom 6 is right there. The decoder reads the memory in `read`.


# %%
class BothWays(Attention):
    def allowed(self, T_q, T_k):
        return torch.ones(T_q, T_k, dtype=torch.bool)


class Translating(Block):
    def __init__(self, d_model=48):
        super().__init__(Attention, d_model)
        self.norm3, self.cross = nn.LayerNorm(d_model), Attention(d_model)

    def read(self, y, memory):
        return self.cross(y, memory)[0]

    def forward(self, y, memory):
        y = y + self.attention(self.norm1(y))[0]
        y = y + self.read(self.norm3(y), memory)
        return y + self.mlp(self.norm2(y))


class Deaf(Translating):
    def read(self, y, memory):
        return self.cross(y)[0]  # should be self.cross(y, memory)


class SmallTranslator(nn.Module):
    def __init__(self, decoder=Translating, vocab_size=11, d_model=48):
        super().__init__()
        self.token, self.position = nn.Embedding(vocab_size, d_model), nn.Embedding(32, d_model)
        self.encoder, self.decoder = Block(BothWays, d_model), decoder(d_model)
        self.norm, self.head = nn.LayerNorm(d_model), nn.Linear(d_model, vocab_size)

    def embed(self, ids):
        return self.token(ids) + self.position(torch.arange(ids.shape[1]))

    def forward(self, src, tgt):
        memory, _ = self.encoder(self.embed(src))
        return self.head(self.norm(self.decoder(self.embed(tgt), memory)))


def sentences(step, rows=32, T=8):
    source = torch.randint(10, (rows, T), generator=torch.Generator().manual_seed(step))
    return source, torch.cat([torch.full((rows, 1), 10), source[:, :-1]], 1), source  # 10 is the start


def loss_of_translation(model, source, shifted, targets):
    return F.cross_entropy(model(source, shifted).flatten(0, 1), targets.flatten())


translation_losses, moves = {}, {}
for decoder in (Deaf, Translating):
    torch.manual_seed(1)
    translator = SmallTranslator(decoder)
    translation_losses[decoder.__name__] = train(translator, 120, sentences, loss_of_translation)
    source, shifted, _ = sentences(10**6)
    moved = (translator(source, shifted) - translator(source.flip(0), shifted)).abs().max().item()
    moves[decoder.__name__] = moved
    loss = translation_losses[decoder.__name__][-1]
    print(f"{decoder.__name__:12} loss {loss:.3f}; another source moves the logits by {moved:.3f}")
    assert (moved == 0) == (decoder is Deaf)
assert (
    translation_losses["Deaf"][-1] > math.log(10) - 0.1
)  # the digits are random: without the source nobody can do better
assert translation_losses["Translating"][-1] < 1.0  # mended: the memory is read
disappeared["7 what another source moves"] = moves["Deaf"], moves["Translating"]

# %% [markdown]
# The curve's plateau is at ln 10. What is fluent about a language of random digits is nothing; in a real one the deaf
# decoder becomes a fine language model, and its loss falls far below ln V. Only the doctor, or a changed source,
# shows the fault.

# %%
assert "S02" in findings(ch.doctor.check(SmallTranslator(Deaf), ch.doctor.Spec(kind="seq2seq")))
assert findings(ch.doctor.check(SmallTranslator(), ch.doctor.Spec(kind="seq2seq"))) == []


# %% [markdown]
# ## 8. The batch changes the answer
#
# `nn.MultiheadAttention` reads (T, B, D) unless it is told `batch_first=True`. If it is not, each token attends to
# the tokens at its own index in the *other rows*.


# %%
class AcrossRows(Attention):
    def forward(self, x, memory=None, past=None):
        mixed, present = super().forward(x.transpose(0, 1), memory, past)
        return mixed.transpose(0, 1), present


def changed_by_the_batch(model, ids):
    """How much the logits of row 5 differ between the batch and the row alone."""
    with torch.no_grad():
        return (model(ids)[0][5] - model(ids[5:6])[0][0]).abs().max().item()


across = SmallGPT(AcrossRows)
ids = batch(0)[0]
print(f"row 5 alone and in its batch differ by {changed_by_the_batch(across, ids):.1e}")
assert changed_by_the_batch(across, ids) > 1e-3
assert "A10" in findings(ch.doctor.check(across, ch.doctor.Spec(kind="causal"), only=["A10"]))

# %% [markdown]
# Mended: the same weights, and attention within each row.

# %%
within = SmallGPT()
within.load_state_dict(across.state_dict())
print(f"row 5 alone and in its batch differ by {changed_by_the_batch(within, ids):.1e}")
assert changed_by_the_batch(within, ids) < 1e-5
assert findings(ch.doctor.check(within, ch.doctor.Spec(kind="causal"), only=["A10"])) == []
disappeared["8 what the batch changes"] = changed_by_the_batch(across, ids), changed_by_the_batch(within, ids)

# %% [markdown]
# Differences of about 1e-6 are rounding: other shapes are summed in another order.
#
# Eight symptoms, each with the fault and after it was mended:

# %%
print(f"{'':45} planted    mended")
for symptom, (planted, repaired) in disappeared.items():
    print(f"{symptom:45} {planted:7.2g} {repaired:9.2g}")
assert [label[0] for label in disappeared] == list("12345678")

# %% [markdown]
# The curves of all of this, side by side:

# %%
for label, values in (
    ("healthy", healthy_losses),
    ("1 gradient cleared", flat_losses),
    ("2 a batch without targets", nan_losses),
    ("3 targets are inputs", copying_losses),
    ("5 targets from elsewhere", constant_losses),
    ("6 the mask is too wide", cheat_losses),
):
    plt.plot(range(1, len(values) + 1), values, label=label, linewidth=1)
plt.axhline(math.log(V), color="gray", linestyle=":", label="ln V")
plt.axhline(floor, color="gray", linestyle="--", label="the corpus's entropy")
plt.xscale("log")
plt.xlabel("step")
plt.ylabel("loss, nats per character")
plt.legend(fontsize=8)
plt.show()

# %% [markdown]
# ## What to ask which tool
#
# | what one sees | planted | who can see it |
# |---|---|---|
# | flat at ln V | gradient cleared before the step | `doctor.watch`, `clearhead doctor train` |
# | falls, then NaN | a batch without targets | the curve names the step; then `watch` on that batch |
# | repeats | targets are the inputs | `watch`, `doctor.xray`: what the loss asks for |
# | random characters | softmax twice in the sampler | `predict` on the model's own text; `doctor.check` of `generate` |
# | always one token | inputs and targets from two places | the plateau of the curve; `watch` |
# | good loss, bad text | causal mask one diagonal too wide | `doctor.check`; the curve where the floor is known |
# | ignores its source | cross-attention without memory | `doctor.check`; another source |
# | batch changes the answer | attention over the rows | `doctor.check`; a row alone |
#
# `clearhead doctor symptoms` lists these and ten more; `clearhead doctor --symptom one-token mymodel.py:build` starts
# from what you see. For a loop or a sampler of your own, two habits find most: overfit one batch, and read the
# decoded inputs beside the decoded targets.
#
# ## Exercises
#
# **1.** Pad short sentences to one length and count the padding in the loss. What does the doctor call it, and what
# does the loss look like?

# %% tags=["hide-cell"]
PAD = V


def padded(step, rows=8, T=48):
    ids, _ = batch(step, rows, T)
    lengths = torch.randint(4, 12, (rows, 1), generator=torch.Generator().manual_seed(step))
    ids = ids.where(torch.arange(ids.shape[1]) < lengths, PAD)
    return ids[:, :-1], ids[:, 1:]


model = SmallGPT(vocab_size=V + 1)
pad_losses = train(model, 20, padded)
print(f"after 20 steps {pad_losses[-1]:.2f}, because most targets are padding; healthy {healthy_losses[19]:.2f}")
with ch.doctor.watch(model) as watched:
    train(model, 2, padded)
assert "D05" in findings(watched.report())
print(watched.report()["D05"].evidence.witness)
assert pad_losses[-1] < healthy_losses[19]

# %% [markdown]
# **2.** With a cache, let every new token believe that it is the first (`first_position` returns 0). Does the
# training loss notice? Does the doctor?


# %% tags=["hide-cell"]
class Restarts(SmallGPT):
    def first_position(self, cache):
        return 0


restarts = Restarts()
restarts.load_state_dict(healthy.state_dict())
assert loss_of(restarts, *batch(0)) == loss_of(healthy, *batch(0))  # training uses no cache
assert "K01" in findings(ch.doctor.check(restarts, ch.doctor.Spec(kind="causal"), only=["K01"]))
print(write(restarts))

# %% [markdown]
# **3.** Train the healthy model with a learning rate of 3. Which tool tells you, and what?

# %% tags=["hide-cell"]
model = SmallGPT()
wild_losses = train(model, 12, learning_rate=3.0)
print(*signs(curve(wild_losses), vocab_size=V), sep="\n")
assert max(wild_losses) > wild_losses[0] + 1
plt.plot(range(1, 13), wild_losses, label="learning rate 3")
plt.plot(range(1, 13), healthy_losses[:12], label="0.003")
plt.axhline(math.log(V), color="gray", linestyle=":", label="ln V")
plt.yscale("log")
plt.xlabel("step")
plt.ylabel("loss, nats per character")
plt.legend()
plt.show()

# %% [markdown]
# ## Where this stands in the house
#
# - the faults that the doctor knows: [faults.toml](../src/clearhead/doctor/catalogue/faults.toml)
# - the symptoms that lead to them: [symptoms.toml](../src/clearhead/doctor/catalogue/symptoms.toml)
# - which logit depends on which token: [dependency.py](../src/clearhead/doctor/probes/dependency.py)
# - what a loss asks for: [loss.py](../src/clearhead/doctor/probes/loss.py)
# - a loop, watched: [watching.py](../src/clearhead/doctor/training/watching.py)
# - what the curve says by itself: [curves.py](../src/clearhead/doctor/catalogue/curves.py)
# - [the doctor's page](../docs/doctor.md), and [the studio](../docs/studio.md), which draws the floor into the curve
