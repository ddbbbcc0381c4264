# %% [markdown]
# # 8. A translator
#
# The first Transformer was built to translate. An *encoder* reads the whole source at once and makes a vector of each
# token: the *memory*. A *decoder* writes the translation from left to right, and looks into the memory by
# *cross-attention* at every step.
#
# In this lesson you train one on German and English sentences, decode greedily and with a beam, see which words it
# looked at, and then take out the cross-attention and train again. What is left is worth seeing once in your life.

# %%
import math
import os
import re
import time
from collections import Counter
from itertools import islice

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clearhead as ch
from clearhead.data import pairs
from clearhead.inference import beam_search, can_score, corpus_scores
from clearhead.training import Stepped
from clearhead.training.loss import Smoothing, token_loss_sum

FULL = os.environ.get("SIZE") == "full"
torch.manual_seed(0)

# %% [markdown]
# ## Pairs
#
# A grammar that ships with the library writes English and German at once, with real agreement and word order. We
# translate from German. Tokens are words here, for you to read them; `clearhead train` uses subwords.
#
# Two tokens are special. `PAD` fills up short rows. `END` ends every sentence, and also *begins* what the decoder
# reads: it must be given something before it has written its first word.

# %%
PAD, END, UNKNOWN = 0, 1, 2
SPECIAL = ["<pad>", "<end>", "<unknown>"]


def words_of(sentence: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", sentence)


n_train, n_test, batch_size = (4000, 100, 64) if FULL else (640, 16, 32)
train = [(german, english) for english, german in islice(pairs.sentence_pairs("train", 1), n_train)]
test = [(german, english) for english, german in islice(pairs.sentence_pairs("seen", 1), n_test)]
vocabularies = [SPECIAL + sorted({word for pair in train for word in words_of(pair[side])}) for side in (0, 1)]
numbers = [{word: number for number, word in enumerate(vocabulary)} for vocabulary in vocabularies]
print(f"{n_train} pairs, {len(vocabularies[0])} German words and {len(vocabularies[1])} English ones")
for german, english in train[:3]:
    print(f"  {german}  |  {english}")


def encode(sentence: str, side: int) -> list[int]:
    return [numbers[side].get(word, UNKNOWN) for word in words_of(sentence)]


# %% [markdown]
# ## Shift right
#
# The decoder learns to say the next word. So its *input* is the translation, moved to the right by one, with `END` in
# front; its *targets* are the translation with `END` behind. At each position, the target is what the input has one
# place later. If both were the same, the decoder would only have to copy.
#
# Where a row is padding, the target is -100: the loss does not count it.


# %%
def padded(rows: list[list[int]], fill: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows])


def batch_of(chosen: list[tuple[str, str]]) -> tuple[Tensor, Tensor, Tensor]:
    """Sources (B, T_src), inputs and targets (B, T)."""
    sources = [[*encode(german, 0), END] for german, _ in chosen]
    targets = [encode(english, 1) for _, english in chosen]
    inputs = [[END, *target] for target in targets]
    return padded(sources, PAD), padded(inputs, PAD), padded([[*target, END] for target in targets], -100)


source, inputs, targets = batch_of([("Sie waren klein.", "They were small."), train[0]])
for row in range(2):
    print("input ", [vocabularies[1][number] for number in inputs[row]])
    print("target", [vocabularies[1][number] if number >= 0 else "-" for number in targets[row]])
real = targets >= 0
assert torch.equal(inputs[:, 1:][real[:, 1:]], targets[:, :-1][real[:, 1:]])
assert (inputs[:, 0] == END).all()

# %% [markdown]
# ## Encoder, memory, cross-attention
#
# `ch.EncoderDecoder` is made of the blocks that you know. The encoder has no causal mask: every source token may see
# all others. The memory is computed *once* per sentence, however many words the decoder writes.

# %%
config = ch.ModelConfig(
    architecture="encoder_decoder",
    vocab_size=len(vocabularies[1]),
    source_vocab_size=len(vocabularies[0]),
    pad_id=PAD,
    block_size=32,
    n_layers=2,
    n_heads=4,
    d_model=128 if FULL else 64,
    positions="sinusoidal",
    scale_embedding=True,
)
model = ch.EncoderDecoder(config, seed=1)
print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
memory = model.encode(source)
print(
    "source", tuple(source.shape), " memory", tuple(memory.states.shape), " logits", tuple(model(source, inputs).shape)
)

# %% [markdown]
# Cross-attention is attention whose keys and values come from the memory. Here it is by hand for the first decoder
# layer: queries from the decoder's stream, keys from the memory, softmax over *source* positions. The library's
# `record` finds the same weights, one row per target token, one column per source token, and none on padding.

# %%
with ch.record(model) as trace, torch.no_grad():
    model(source, inputs)
name = "decoder.blocks.0.cross_attention"
attention = model.decoder.blocks[0].cross_attention.part
stream = torch.tensor(trace[f"{name}.norm"])  # what this sublayer reads, (B, T, D)
heads, width = config.n_heads, config.head_dim
with torch.no_grad():
    query = attention.query(stream).unflatten(-1, (heads, width)).transpose(1, 2)  # (B, H, T, K)
    key = attention.key(model.encode(source).states).unflatten(-1, (heads, width)).transpose(1, 2)  # (B, H, T_src, K)
    scores = (query @ key.mT / math.sqrt(width)).masked_fill((source == PAD)[:, None, None], -torch.inf)
    weights = scores.softmax(-1)  # (B, H, T, T_src)
recorded = torch.tensor(trace[f"{name}.part.attention"])
print("weights", tuple(weights.shape))
written = inputs != PAD
torch.testing.assert_close(weights.transpose(1, 2)[written], recorded.transpose(1, 2)[written], rtol=1e-3, atol=1e-5)
assert (recorded[0, :, :, (source[0] == PAD).nonzero()[:, 0]] == 0).all()

# %% [markdown]
# ## Label smoothing, in both definitions, and pads never counted
#
# Plain cross entropy asks for a probability of 1 on the right word. Label smoothing asks for a little less and gives
# the rest to the others. There are two definitions, and papers rarely say which they mean:
#
# - over **all** $V$ words, as `F.cross_entropy(label_smoothing=...)`: the right word gets $1 - \varepsilon +
#   \varepsilon / V$;
# - over the $V - 1$ **others**, as the first Transformer's own code: the right word gets $1 - \varepsilon$.
#
# They are the same family: the second is the first with $\varepsilon V / (V - 1)$.

# %%
share, V = 0.1, config.vocab_size
logits = 3 * torch.randn(*targets.shape, V)  # any


def smoothed_by_hand(logits: Tensor, targets: Tensor, over: str) -> Tensor:
    """The sum over the targets that count."""
    counted = targets >= 0
    log_p = logits[counted].log_softmax(-1)  # (n, V)
    right = F.one_hot(targets[counted], V).float()
    spread = {"all": share / V, "others": share / (V - 1) * (1 - right)}[over]
    goal = (1 - share) * right + spread  # (n, V)
    return -(goal * log_p).sum()


for over, torch_share in (("all", share), ("others", share * V / (V - 1))):
    hand = smoothed_by_hand(logits, targets, over)
    house, plain = token_loss_sum(logits, targets, Smoothing(share, over))
    by_torch = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=torch_share, reduction="sum")
    print(f"{over:6}  by hand {hand:.4f}  library {house:.4f}  torch with {torch_share:.6f}: {by_torch:.4f}")
    torch.testing.assert_close(hand, house)
    torch.testing.assert_close(hand, by_torch)

# %% [markdown]
# A smoothed loss never reaches zero. Its least possible value is the entropy of the smoothed target. With 0.1 over all
# of 10,000 words that is 1.25 nats: people report "my loss is stuck at 1.3" for a perfect model. So the library trains
# on the smoothed loss and *shows* you the plain one.

# %%
V_large = 10_000
right_share = 1 - share + share / V_large
floor = -(right_share * math.log(right_share) + (V_large - 1) * share / V_large * math.log(share / V_large))
print(f"least smoothed loss with V = {V_large:,}: {floor:.3f} nats")
assert abs(floor - 1.25) < 0.01

# %% [markdown]
# Several tutorials smooth with a matrix of targets and set only the *column* of the padding token to zero, or forget
# the pads altogether, and divide by `B * T`. Then rows of padding count as words. The loss looks better the more
# padding a batch has, and its gradient is diluted by the same factor.

# %%
filled = targets.where(targets >= 0, PAD)  # PAD as if it were a word to predict
counted_all = F.cross_entropy(logits.flatten(0, 1), filled.flatten())
counted_real = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
sure_of_pads = logits.clone()
sure_of_pads[filled == PAD, PAD] += 20  # a model that has learned to say PAD after the end, and nothing else
diluted = F.cross_entropy(sure_of_pads.flatten(0, 1), filled.flatten())
print(f"pads not counted {counted_real:.3f}; counted, and learned {diluted:.3f}: nothing was translated any better")
assert diluted < 0.85 * counted_real

# %% [markdown]
# ## Train, with cross-attention and without
#
# Two models, the same seed, the same five epochs. In the second one the cross-attention is replaced by a sublayer that
# hands its input on. Nothing of the source can reach its output.


# %%
class PassOn(nn.Module):
    """A sublayer that does nothing."""

    def forward(self, x: Tensor, *inputs: object, **options: object) -> Tensor:
        return x


def without_cross_attention() -> ch.EncoderDecoder:
    model = ch.EncoderDecoder(config, seed=1)
    for block in model.decoder.blocks:
        block.register_module("cross_attention", PassOn())
    return model


epochs = 5
steps_per_epoch = n_train // batch_size
by_length = sorted(train, key=lambda pair: len(words_of(pair[1])))  # pairs of like length together: little padding
held_out = batch_of(test)


def batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """A pure function of the step; each epoch takes every pair once."""
    epoch, index = divmod(step, steps_per_epoch)
    order = torch.randperm(steps_per_epoch, generator=torch.Generator().manual_seed(epoch))
    first = int(order[index]) * batch_size
    return batch_of(by_length[first : first + batch_size])


@torch.no_grad()
def held_out_loss(model: ch.EncoderDecoder) -> float:
    source, inputs, targets = held_out
    return F.cross_entropy(model.eval()(source, inputs).flatten(0, 1), targets.flatten(), ignore_index=-100).item()


plan = ch.TrainConfig(
    steps=epochs * steps_per_epoch,
    optimizer="muon",
    learning_rate=1e-2,
    schedule="linear",
    warmup_steps=10,
    label_smoothing=0.1,
)
models = {"with": model, "without": without_cross_attention()}
curves: dict[str, list[float]] = {}
final = {}
for name, trained in models.items():
    start = time.perf_counter()
    curves[name] = [event.loss for event in ch.fit(trained, plan, batch, seed=1) if isinstance(event, Stepped)]
    final[name] = held_out_loss(trained)
    print(f"{name:7} cross-attention: loss on held-out pairs {final[name]:.3f}, {time.perf_counter() - start:.0f} s")

plt.figure(figsize=(6, 3.5), layout="constrained")
for name, losses in curves.items():
    plt.plot(losses, linewidth=0.8, label=f"{name} cross-attention")
plt.axhline(math.log(V), linestyle=":", color="gray", label="ln V")
plt.xlabel("step")
plt.ylabel("training loss, not smoothed (nats per word)")
plt.legend()
plt.show()
assert final["with"] < curves["with"][0]
assert final["without"] < math.log(V) - 1  # it learns, too!

# %% [markdown]
# ## Greedy
#
# Now translate: encode once, then ask for the likeliest next word until it is `END`. This is the loop, by hand and
# without a cache; `beam_search` with a beam of 1 does the same, faster.


# %%
@torch.no_grad()
def greedy(model: ch.EncoderDecoder, sentence: str, longest: int = 25) -> list[int]:
    memory = model.eval().encode(torch.tensor([[*encode(sentence, 0), END]]))
    ids = [END]
    while len(ids) <= longest:
        hidden = model.decode(torch.tensor([ids]), memory)
        following = int(model.head(hidden[:, -1]).argmax())
        if following == END:
            break
        ids.append(following)
    return ids[1:]


def search(model: ch.EncoderDecoder, beam_size: int) -> list[tuple[list[int], float]]:
    """The best hypothesis of each test sentence, and its log-probability over its length penalty."""
    options = ch.TranslationConfig(beam_size=beam_size, max_new_tokens=25)
    sources = [[*encode(german, 0), END] for german, _ in test]
    return [(best[0].ids, best[0].score) for best in beam_search(model, sources, options, end=END)]


def joined(words: list[str]) -> str:
    """Words to a sentence: marks go to the word before, and what follows an apostrophe or a hyphen goes on."""
    before = re.sub(r" ([^\w\s])", r"\1", " ".join(words))
    return re.sub(r"(?<=\w)(-|'(?=\s(?:s|clock)\b)) ", r"\1", before)


def text_of(ids: list[int]) -> str:
    return joined([vocabularies[1][number] for number in ids])


found_greedily = search(model, beam_size=1)
by_hand = [greedy(model, german) for german, _ in test[:8]]
agree = sum(mine == theirs for mine, (theirs, _) in zip(by_hand, found_greedily, strict=False))
print(f"{agree} of 8 sentences agree word for word")
assert agree >= 7  # a tie may fall either way
for (german, english), (ids, _) in zip(test[:5], found_greedily, strict=False):
    print(f"{german}\n    model      {text_of(ids)}\n    reference  {english}")

# %% [markdown]
# ## Beam against greedy
#
# Greedy decoding takes the likeliest *word* each time; the likeliest *sentence* may begin with another one. A beam
# follows several beginnings. Its score is the log-probability over a power of the length, or else short sentences would
# win.
#
# To compare, we need BLEU. It counts how many of the words, pairs, triples and quadruples of words in the translations
# occur in the references, takes the geometric mean of the four shares, and punishes translations that are too short.


# %%
def bleu(translations: list[list[str]], references: list[list[str]]) -> float:
    """Papineni et al. 2002, one reference each, from 0 to 100."""
    precisions = []
    for n in range(1, 5):
        matches = possible = 0
        for translation, reference in zip(translations, references, strict=True):
            counts, there = (
                Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
                for words in (translation, reference)
            )
            matches += sum(min(count, there[gram]) for gram, count in counts.items())
            possible += sum(counts.values())
        precisions.append(matches / max(1, possible))
    if not all(precisions):
        return 0.0
    lengths = sum(map(len, translations)), sum(map(len, references))
    brevity = min(1.0, math.exp(1 - lengths[1] / lengths[0]))
    return 100 * brevity * math.exp(sum(map(math.log, precisions)) / 4)


def bleu_of(results: list[tuple[list[int], float]]) -> float:
    translations = [words_of(text_of(ids)) for ids, _ in results]
    return bleu(translations, [words_of(english) for _, english in test])


found_by_beam = search(model, beam_size=4)
better = sum(beam[1] > alone[1] + 1e-4 for beam, alone in zip(found_by_beam, found_greedily, strict=True))
worse = sum(beam[1] < alone[1] - 1e-4 for beam, alone in zip(found_by_beam, found_greedily, strict=True))
print(f"a beam of 4 finds a better score for {better} of {n_test} sentences, a worse one for {worse}")
print(f"BLEU: greedy {bleu_of(found_greedily):.1f}, beam of 4 {bleu_of(found_by_beam):.1f}")
assert worse <= n_test // 10
if FULL and can_score():
    official = corpus_scores([text_of(ids) for ids, _ in found_by_beam], [english for _, english in test])
    print(f"sacreBLEU says {official.bleu:.1f}")
    assert abs(official.bleu - bleu_of(found_by_beam)) < 2  # sacreBLEU leaves clown's and o'clock whole

# %% [markdown]
# ## What the cross-attention does
#
# Each row of this picture belongs to a word that the model wrote, and shows where it looked while writing it, averaged
# over the heads of the last layer.

# %%
longest_first = sorted(range(n_test), key=lambda index: -len(words_of(test[index][0])))
index = longest_first[n_test // 2]
source_words = [*words_of(test[index][0]), "<end>"]
written_ids = found_greedily[index][0] or [UNKNOWN]
with ch.record(model) as trace, torch.no_grad():
    model(torch.tensor([[*encode(test[index][0], 0), END]]), torch.tensor([[END, *written_ids]]))
attended = trace[f"decoder.blocks.{config.n_layers - 1}.cross_attention.part.attention"][0].mean(0)  # (T, T_src)
target_words = [*(vocabularies[1][number] for number in written_ids), "<end>"]
figure, axis = plt.subplots(figsize=(6, 5), layout="constrained")
axis.imshow(attended, cmap="Greys", vmin=0)
axis.set_xticks(range(len(source_words)), source_words, rotation=60, ha="right")
axis.set_yticks(range(len(target_words)), target_words)
axis.set(xlabel="source word, looked at", ylabel="word that is written")
plt.show()
assert attended.shape == (len(target_words), len(source_words))
assert abs(attended.sum(-1) - 1).max() < 1e-5

# %% [markdown]
# ## And without it
#
# The same test for the model whose cross-attention was removed.

# %%
blind = search(models["without"], beam_size=1)
print(f"BLEU: with {bleu_of(found_greedily):.1f}, without {bleu_of(blind):.1f}")
print("different translations of", n_test, "sentences, with:", len({tuple(ids) for ids, _ in found_greedily}))
print("different translations of", n_test, "sentences, without:", len({tuple(ids) for ids, _ in blind}))
for (german, _), (ids, _) in zip(test[:3], blind, strict=False):
    print(f"{german}\n    {text_of(ids)}")
assert len({tuple(ids) for ids, _ in blind}) == 1  # one sentence for every source
if FULL:
    assert bleu_of(found_greedily) > 20
    assert bleu_of(blind) < 5
    assert final["without"] > final["with"] + 0.5

# %% [markdown]
# Look at the curves again, and at this. The model without cross-attention *learned*: its loss fell far below $\ln V$.
# Its sentence is fluent English. And it is the same sentence for every source, word for word. That is what is left when
# nothing of the source reaches the decoder: a language model of the target side. It has learned which words are
# frequent, which follow each other, and where a sentence ends, and all of that lowers the loss. With teacher forcing it
# is even told the true beginning of each translation, so it can guess the rest a little. Only when it must begin by
# itself does it show that it knows nothing about the source. A falling loss and fluent output do not prove that a
# translator reads; two different sources with the same translation prove that it does not. The difference that the
# source makes is the distance between the two curves, and it is what cross-attention is worth.
#
# ## Exercises
#
# **1.** Give the model with cross-attention the memory of *another* sentence (roll the batch by one). What happens to
# its loss, and to the loss of the model without cross-attention?


# %% tags=["hide-cell"]
@torch.no_grad()
def loss_with_rolled_sources(model: ch.EncoderDecoder) -> float:
    source, inputs, targets = held_out
    logits = model.eval()(source.roll(1, 0), inputs)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100).item()


for name, trained in models.items():
    print(f"{name:7}: right sources {final[name]:.3f}, of a neighbor {loss_with_rolled_sources(trained):.3f}")
assert math.isclose(loss_with_rolled_sources(models["without"]), final["without"], rel_tol=1e-5)
if FULL:
    assert loss_with_rolled_sources(model) > final["with"] + 0.5

# %% [markdown]
# **2.** The decoder may see all of the source, but the source's *padding* must not matter. Fill the source of one
# sentence up with five more pads. Do the logits move? And if you use a token that is not the pad?

# %% tags=["hide-cell"]
with torch.no_grad():
    alone = torch.tensor([[*encode(test[0][0], 0), END]])
    begun = torch.tensor([[END, 5, 6]])
    logits = model(alone, begun)
    longer = model(torch.cat([alone, torch.full((1, 5), PAD)], 1), begun)
    other = model(torch.cat([alone, torch.full((1, 5), UNKNOWN)], 1), begun)
moved = [(changed - logits).abs().max().item() for changed in (longer, other)]
print(f"five pads move the logits by {moved[0]:.1e}, five words by {moved[1]:.1e}")
torch.testing.assert_close(longer, logits, rtol=1e-3, atol=1e-4)
assert (other - logits).abs().max() > 1e-3

# %% [markdown]
# **3.** What does a beam search prefer without a length penalty, `length_penalty=0`? Compare the mean lengths.

# %% tags=["hide-cell"]
lengths = {}
for penalty in (0.0, 1.0):
    options = ch.TranslationConfig(beam_size=4, length_penalty=penalty, max_new_tokens=25)
    results = beam_search(model, [[*encode(german, 0), END] for german, _ in test], options, end=END)
    lengths[penalty] = sum(len(best[0].ids) for best in results) / n_test
print("mean length by penalty:", {penalty: round(length, 2) for penalty, length in lengths.items()})
assert lengths[0.0] <= lengths[1.0]
# Every further word costs log-probability, so without a penalty the shorter of two hypotheses has the advantage.

# %% [markdown]
# ## Where this stands in the house
#
# - [encoder_decoder](../src/clearhead/models/encoder_decoder.py) is the model; a decoder's block is the encoder's with
#   one sublayer more ([block](../src/clearhead/parts/block.py)).
# - [the loss](../src/clearhead/training/loss.py) has both smoothings and counts no pads;
#   [batches of pairs](../src/clearhead/data/parallel/batches.py) shifts right.
# - [beam](../src/clearhead/inference/beam.py) is the search, and
#   [alignment](../src/clearhead/inspection/attention/alignment.py) what `clearhead translate --alignment` prints.
# - [the experiment](../benchmarks/experiments/cross_attention.py) repeats the removal with subwords and on Multi30k:
#   61.1 BLEU with and 0.0 without on our pairs, 21.5 and 3.4 on Multi30k
#   ([table](../benchmarks/results/cross_attention.md)).
# - [the doctor](../docs/doctor.md) finds a translator that ignores its source before training; in
#   [the studio](../docs/studio.md) you see the alignment of your own sentence.
