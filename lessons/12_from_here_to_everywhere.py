# ---
# jupyter:
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---
# %% [markdown]
# # 12. From here to everywhere
#
# A model that only its own library can open is a dead end. This lesson takes one small model to the places where
# models live: to Hugging Face's `transformers` and back, to another text (fine-tuning), into an ONNX file, behind a
# server that OpenAI's clients can use, and onto several processes. At each border the same question is asked, **is it
# still the same model?**, and answered with numbers.
#
# Two of the places need packages that the core does not: `pip install '.[hub,onnx,serve]'`. Where one is missing, the
# lesson says so and goes on.

# %%
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
import warnings
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import clearhead as ch
from clearhead.data import stories

FULL = os.environ.get("SIZE") == "full"
steps = 400 if FULL else 40
folder = Path(tempfile.mkdtemp())
os.environ["TQDM_DISABLE"] = "1"
warnings.filterwarnings("ignore", message="IProgress")  # of progress bars, which nobody needs here


def missing(*packages):
    """Whether one of these is not installed; says so."""
    absent = [package for package in packages if find_spec(package) is None]
    for package in absent:
        print(f"{package} is not installed, so this part is skipped")
    return bool(absent)


# %% [markdown]
# ## A run
#
# A training leaves a folder. The options are spelled out here so that it is small; `clearhead train stories` chooses
# them for you. The layout is Qwen3's: rotary positions, RMSNorm, a gated feed-forward, a head of its own.

# %%
options = {
    "model": {"n_layers": 2, "n_heads": 4, "d_model": 64, "block_size": 64},
    "train": {"steps": steps, "batch_size": 8, "eval_every": steps, "eval_tokens": 4096, "save_every": steps},
    "data": {"tokenizer": "char", "corpus_characters": 200_000},
}
run = ch.train("stories", out=folder / "run", preset="tiny", options=options, progress=False)
print(sorted(path.name for path in run.folder.iterdir()))
config = json.loads((run.folder / "config.json").read_text())
print("for transformers:", config["architectures"], config["model_type"])
model = run.model().eval()
ids = run.encode("One day, ")
with torch.no_grad():
    logits = model(ids)

# %% [markdown]
# ## To Hugging Face
#
# There is nothing to convert: the run's folder *is* a Hugging Face folder. `config.json`, `model.safetensors` and
# `tokenizer.json` are theirs; the rest of the folder does not disturb them. So their code opens it, and computes the
# same:

# %%
if not missing("transformers"):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs = AutoModelForCausalLM.from_pretrained(run.folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.folder)
    assert tokenizer("One day, ")["input_ids"] == ids[0].tolist()
    with torch.no_grad():
        difference = (theirs(ids).logits - logits).abs().max().item()
    print(f"{type(theirs).__name__}: the largest difference of a logit is {difference:.1e}")
    assert difference < 1e-4

# %% [markdown]
# What is it that has to agree? Names and shapes of the weights, and for each the meaning: which half of a head rotary
# positions turn, whether a matrix is stored transposed, whether the norm's weight is `w` or `1 + w`. `clearhead`
# keeps this in one table per family that is read in both directions.
#
# ## And back
#
# A model that `transformers` has written becomes a run. It could be a download; here it is ours, written by them:

# %%
if not missing("transformers"):
    theirs.save_pretrained(folder / "theirs")
    tokenizer.save_pretrained(folder / "theirs")
    back = ch.import_model(folder / "theirs", out=folder / "back")
    with torch.no_grad():
        returned = back.model().eval()(ids)
    print(f"there and back: {(returned - logits).abs().max().item():.1e}")
    assert torch.equal(returned, logits)  # the same weights in the same code: not one bit differs

# %% [markdown]
# ## Fine-tuning
#
# The same weights, another text, a lower rate. First measure what the model thinks of the new text, so that there is
# something to compare with. Our text is one sentence said in many ways; a real one would be your own.

# %%
sentences = "".join(
    f"{name} has {count} {thing}s. They are {color}.\n"
    for name in ("Tom", "Lucy", "Amina", "Ben")
    for count in ("two", "three", "seven", "ten")
    for thing in ("book", "jacket", "cake", "owl", "stone")
    for color in ("red", "green", "brown", "old", "warm")
)
new_text = folder / "new.txt"
new_text.write_text(sentences)
old = folder / "old.txt"
old.write_text(stories.text(10_000, 2))
before = run.evaluate(str(new_text)).loss
tuned = ch.train(
    str(new_text),
    out=folder / "tuned",
    start_from=run,
    options={"train": {"steps": steps, "eval_every": steps, "save_every": steps, "warmup_steps": 2}},
    progress=False,
)
after, old_text = tuned.evaluate(str(new_text)).loss, tuned.evaluate(str(old)).loss
old_before = run.evaluate(str(old)).loss
print(
    f"the new text: {before:.3f} before, {after:.3f} after; the stories: {old_before:.3f} before, {old_text:.3f} after"
)
assert after < before

rates = [max(row["learning_rate"] for row in r.history) for r in (run, tuned)]
print(f"peak learning rate {rates[0]:.4f}, of the fine-tuning {rates[1]:.4f}")
assert abs(rates[1] / rates[0] - 0.1) < 0.02

# %% [markdown]
# The second pair of numbers is the price: what a model learns anew it pays for with what it knew. Mixing some of the
# old text into the new one, or fewer steps, keeps more of it.

# %%
for label, r in (("training", run), ("fine-tuning", tuned)):
    plt.plot([row["step"] for row in r.history], [row["train_loss"] for row in r.history], label=label)
plt.xlabel("step")
plt.ylabel("loss, nats per character")
plt.legend()
plt.show()

# %% [markdown]
# ## ONNX
#
# An ONNX file holds the operations as well as the weights; no Python is needed to run it. `export` opens the result
# with the *other* program, compares logits, greedy text and token ids, and writes down what it found: the
# certificate.

# %%
if not missing("onnx", "onnxscript", "onnxruntime"):
    exported = run.export("onnx", folder / "onnx")
    print(exported.certificate)
    certificate = json.loads(exported.certificate_path.read_text())
    assert certificate["passed"]
    print(sorted(path.name for path in exported.path.iterdir()))

# %% [markdown]
# ## Behind a server
#
# `clearhead serve` speaks the protocol of OpenAI's API, so every client of theirs can talk to a model of ours. Here
# it runs beside the lesson, on a port that the system picks, until the question is answered.

# %%
if not missing("starlette", "uvicorn"):
    plain = os.environ | {"NO_COLOR": "1"}
    command = [sys.executable, "-m", "clearhead", "serve", str(run.folder), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=plain)
    try:
        line = next(line for line in server.stdout if "http://" in line)
        print(line.strip())
        address = line[line.index("http://") :].split()[0]
        body = {"model": run.name, "prompt": "One day, ", "max_tokens": 40, "temperature": 0}
        request = urllib.request.Request(
            f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)["choices"][0]["text"]
    finally:
        server.terminate()
        server.wait(timeout=60)
    print(repr(answer))
    local = run.generate("One day, ", max_new_tokens=40, temperature=0.0)
    assert local.endswith(answer)

# %% [markdown]
# ## On several processes
#
# `torchrun` starts the processes; the command behind it is the one that you know. Each process computes the gradient
# of its rows of the batch, the gradients are added, and all take the same step. Because the sum is divided by the
# tokens of the whole batch, two processes take the steps that one takes. Not about the same: the same losses, but for
# the order of a sum.

# %%
few = 8
arguments = ["train", str(new_text), "--train.steps", str(few), "--train.eval_every", str(few), "--train.precision"]
arguments += ["float32", "--train.threads", "1", "--no-preflight", "--model.n_layers", "1", "--model.d_model", "32"]
environment = os.environ | {"OMP_NUM_THREADS": "1"}


def losses_of(name, *launcher):
    """Train in a process of its own, or several, and return the loss of each step."""
    command = [sys.executable, "-m", *launcher, "clearhead", *arguments, "--out", str(folder / name)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert result.returncode == 0, result.stderr
    return [row["train_loss"] for row in ch.load(folder / name).history]


one_process = losses_of("one")
if sys.platform == "linux":
    two_processes = losses_of("two", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    largest = max(abs(a - b) for a, b in zip(one_process, two_processes, strict=True))
    print(f"{few} steps, one process against two: the largest difference of a loss is {largest:.1e}")
    assert largest < 1e-5

# %% [markdown]
# How much each device would hold if the model were large can be said before it is rented:

# %%
print(ch.describe(ch.ModelConfig(**ch.PRESETS["gpt2"].model)))

# %% [markdown]
# ## Exercises
#
# **1.** Safetensors is a format without code: a header of JSON, then numbers. Read the header of `model.safetensors`
# with nothing but the standard library, and count the parameters.

# %% tags=["hide-cell"]
data = (run.folder / "model.safetensors").read_bytes()
header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
shapes = {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
stored = sum(torch.Size(shape).numel() for shape in shapes.values())
print(f"{len(shapes)} tensors, {stored:,} numbers; the model has {sum(p.numel() for p in model.parameters()):,}")
assert stored == sum(p.numel() for p in model.parameters())

# %% [markdown]
# **2.** Damage one weight on the way, and see whether the comparison notices: add 0.01 to one number of the returned
# model.

# %% tags=["hide-cell"]
damaged = run.model().eval()
with torch.no_grad():
    next(damaged.parameters())[int(ids[0, -1]), 0] += 0.01
    moved = (damaged(ids) - logits).abs().max().item()
print(f"one number of {stored:,} moves a logit by {moved:.1e}")
assert moved > 1e-4

# %% [markdown]
# **3.** Does a fine-tuning begin where the other run ended? Compare its first loss, of one batch, with the loss of
# that run on all of the new text.

# %% tags=["hide-cell"]
first_loss = tuned.history[0]["train_loss"]
print(f"first loss of the fine-tuning {first_loss:.3f}; the run on the whole new text {before:.3f}")
assert abs(first_loss - before) < 0.5

# %% [markdown]
# ## Where this stands in the house
#
# - one table per family, read both ways: [hf](../src/clearhead/interop/hf)
# - the certificate: [certificate.py](../src/clearhead/workflows/certificate.py)
# - what fine-tuning starts from: [pretrained.py](../src/clearhead/workflows/pretrained.py)
# - the server: [openai](../src/clearhead/server/openai)
# - the processes: [processes.py](../src/clearhead/training/processes.py)
# - in words: [import and export](../docs/exports.md), [serving](../docs/serving.md), [processes](../docs/scale.md)
# - all of it without a terminal: [the studio](../docs/studio.md)
