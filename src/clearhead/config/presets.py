"""Named starting points, as data. A preset is one layer of options under the person's own; it branches on nothing."""

import math
from dataclasses import dataclass, field

from clearhead.errors import ArgumentError, UsageError
from clearhead.options import Settings
from clearhead.suggestions import did_you_mean
from clearhead.wording import with_article


@dataclass(frozen=True)
class Preset:
    """Options that belong together, and why."""

    about: str
    model: Settings
    train: Settings
    data: Settings = field(default_factory=dict)
    objective: str = "causal"

    @property
    def options(self) -> Settings:
        """The preset as one layer of a `RunConfig`."""
        return {"objective": self.objective, "model": self.model, "train": self.train, "data": self.data}


# The preset if none is named: objective -> (maximum minutes on two CPU cores, best preset known up to there), ...
DEFAULTS: dict[str, tuple[tuple[float, str], ...]] = {
    "causal": ((1.0, "tiny"), (6.0, "small"), (math.inf, "medium")),
    "masked": ((math.inf, "masked"),),
    "seq2seq": ((math.inf, "translator"),),
}
# What takes a default's place where the text is so long that the time allows for no second reading: there a shallower
# and narrower model, which reads more of it, learns more (benchmarks/results/shapes.md).
FOR_LONG_TEXTS: dict[str, str] = {"small": "shallow"}
DEFAULT_MINUTES = 3.0

_MODERN: Settings = {  # Qwen3's: the fastest-learning layout that transformers, GGUF and ONNX can store
    "norm": "rmsnorm",
    "qk_norm": True,
    "feedforward": "swiglu",
    "positions": "rope",
    "tie_embeddings": False,
}
# Short runs want a lower beta1, so each short preset sets its own; from 400 steps on it hardly matters.
_MUON: Settings = {
    "optimizer": "muon",
    "learning_rate": 0.01,
    "schedule": "linear",
    "warmup_steps": 10,
    "min_lr_ratio": 0.0,
}

PRESETS: dict[str, Preset] = {
    "tiny": Preset(
        about="the default for up to one minute; tuned for 30 seconds on two CPU cores",
        model={**_MODERN, "block_size": 128, "n_layers": 2, "n_heads": 4, "d_model": 96},
        train={**_MUON, "steps": 400, "batch_size": 12, "learning_rate": 0.015, "beta1": 0.7},
    ),
    "small": Preset(
        about="the default; tuned for the lowest loss after three minutes on two CPU cores",
        model={**_MODERN, "block_size": 256, "n_layers": 4, "n_heads": 4, "d_model": 128},
        train={**_MUON, "steps": 1000, "batch_size": 8},
    ),
    "shallow": Preset(
        about="the default for a text too long to be read twice in the time; tuned for two minutes on two CPU cores",
        model={**_MODERN, "block_size": 256, "n_layers": 2, "n_heads": 4, "d_model": 96},
        train={**_MUON, "steps": 1000, "batch_size": 8},
    ),
    "medium": Preset(
        about="the default for more than six minutes; tuned for 15 minutes on two CPU cores",
        model={**_MODERN, "block_size": 256, "n_layers": 4, "n_heads": 6, "d_model": 192, "dropout": 0.1},
        train={**_MUON, "steps": 3000, "batch_size": 8},
    ),
    "ngram-tables": Preset(
        about="one narrow block beside tables of hashed n-grams, the quickest to learn; no other program reads it",
        model={
            **_MODERN,
            "block_size": 128,
            "n_layers": 1,
            "n_heads": 1,
            "d_model": 32,
            "feedforward": "relu2",
            "d_ff": 64,
            "embedding_ngrams": 4,
        },
        train={
            **_MUON,
            "steps": 100,
            "batch_size": 32,
            "learning_rate": 0.06,
            "warmup_steps": 2,
            "min_lr_ratio": 0.1,
            "beta1": 0.5,
            "beta2": 0.9,
            "threads": 1,  # synchronizing two threads costs more than so small a step
        },
        data={"tokenizer": "char"},  # whose n-grams are few enough for the tables
    ),
    "bigram": Preset(
        about="the (V, V) table that every tutorial starts with, of characters",
        model={"architecture": "bigram", "block_size": 64},
        data={"tokenizer": "char"},
        train={
            "steps": 500,
            "batch_size": 32,
            "learning_rate": 0.03,
            "schedule": "linear",
            "warmup_steps": 10,
            "min_lr_ratio": 0.0,
            "weight_decay": 0.0,
        },
    ),
    "tutorial": Preset(
        about="the tutorials' character model: 813,440 parameters for 65 characters, AdamW",
        model={
            "block_size": 128,
            "n_layers": 4,
            "n_heads": 4,
            "d_model": 128,
            "feedforward": "relu",
            "dropout": 0.1,
        },
        train={"steps": 5000, "batch_size": 64, "learning_rate": 3e-4, "schedule": "warmup_stable_decay"},
        data={"tokenizer": "char"},
    ),
    "nanogpt-baby": Preset(
        about="nanoGPT's Shakespeare model of characters, for one GPU: 10.7 M parameters",
        data={"tokenizer": "char"},
        model={
            "block_size": 256,
            "n_layers": 6,
            "n_heads": 6,
            "d_model": 384,
            "dropout": 0.2,
            "attention_dropout": 0.2,
        },
        train={"steps": 5000, "batch_size": 64, "learning_rate": 1e-3, "beta2": 0.99},
    ),
    "gpt2": Preset(
        about="GPT-2's smallest shape: 124 M parameters, byte-level BPE",
        model={
            "vocab_size": 50_257,
            "block_size": 1024,
            "n_layers": 12,
            "n_heads": 12,
            "d_model": 768,
            "bias": True,
            "dropout": 0.1,
        },
        train={"steps": 20_000, "batch_size": 32, "micro_batches": 4, "learning_rate": 6e-4, "warmup_steps": 1000},
        data={"tokenizer": "bpe", "bpe_vocab_size": 50_257},
    ),
    "llama": Preset(
        about="a small Llama: RMSNorm, rotary positions, SwiGLU, grouped-query attention, untied head",
        model={
            "vocab_size": 8192,
            "block_size": 512,
            "n_layers": 8,
            "n_heads": 8,
            "n_kv_heads": 4,
            "d_model": 512,
            "norm": "rmsnorm",
            "feedforward": "swiglu",
            "positions": "rope",
            "tie_embeddings": False,
        },
        train={"steps": 10_000, "batch_size": 32, "learning_rate": 6e-4, "warmup_steps": 200},
        data={"tokenizer": "bpe", "bpe_vocab_size": 8192},
    ),
    "translator": Preset(
        about="the default for sentence pairs; tuned for the best translations after 30 minutes on two CPU cores",
        objective="seq2seq",
        model={
            "architecture": "encoder_decoder",
            "block_size": 128,
            "n_layers": 4,
            "n_heads": 4,
            "d_model": 128,
            "feedforward": "relu",
            "positions": "sinusoidal",
            "scale_embedding": True,
            "bias": True,
            "dropout": 0.2,
        },
        train={
            "steps": 4000,
            "batch_size": 32,
            "optimizer": "muon",
            "learning_rate": 0.006,
            "schedule": "linear",
            "warmup_steps": 100,
            "min_lr_ratio": 0.0,
            "label_smoothing": 0.1,
        },
        data={"source": "pairs", "bpe_vocab_size": 8000},
    ),
    "masked": Preset(
        about="the default for --objective masked: a bidirectional encoder",
        objective="masked",
        model={
            "architecture": "encoder",
            "block_size": 128,
            "n_layers": 4,
            "n_heads": 4,
            "d_model": 128,
            "norm": "rmsnorm",
            "qk_norm": True,
            "feedforward": "swiglu",
            "positions": "rope",
        },
        train={
            "steps": 2000,
            "batch_size": 32,
            "optimizer": "muon",
            "learning_rate": 0.01,
            "schedule": "linear",
            "warmup_steps": 20,
            "min_lr_ratio": 0.0,
        },
        data={"tokenizer": "bpe", "bpe_vocab_size": 4096},
    ),
    "vaswani2017": Preset(
        about="the base Transformer as published: 65 M parameters with its vocabulary of 37,000; for one GPU",
        objective="seq2seq",
        model={
            "architecture": "encoder_decoder",
            "vocab_size": 8192,
            "block_size": 256,
            "n_layers": 6,
            "n_heads": 8,
            "d_model": 512,
            "d_ff": 2048,
            "norm_position": "post",
            "feedforward": "relu",
            "positions": "sinusoidal",
            "bias": True,
            "scale_embedding": True,
            "init": "xavier",
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "feedforward_dropout": 0.1,
        },
        train={
            "steps": 100_000,
            "batch_size": 98,  # sequences of 256 tokens: the paper's 25,000 of each language
            "learning_rate": 6.99e-4,  # 512^-0.5 * 4000^-0.5, where the paper's schedule peaks
            "schedule": "inverse_sqrt",
            "warmup_steps": 4000,
            "beta2": 0.98,
            "adam_eps": 1e-9,
            "weight_decay": 0.0,
            "max_grad_norm": float("inf"),
            "label_smoothing": 0.1,
            "average_checkpoints": 5,
        },
        data={"source": "pairs", "tokenizer": "bpe", "bpe_vocab_size": 8192},
    ),
}


def default_preset(objective: str = "causal", minutes: float | None = None, *, long_text: bool = False) -> str:
    """The name of the preset that is taken for an objective in so much time, `DEFAULT_MINUTES` if None.

    Args:
        long_text: the time will not be enough to read the text twice.
    """
    minutes = DEFAULT_MINUTES if minutes is None else minutes
    name = next(name for most, name in DEFAULTS[objective] if minutes <= most)
    return FOR_LONG_TEXTS.get(name, name) if long_text else name


def preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        UsageError: there is none; names the closest.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"`preset` is the name of one, as in 'tiny', not {with_article(type(name).__name__)}")
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise UsageError(f"there is no preset '{name}'{did_you_mean(name, PRESETS)} (presets: {known})")
    return PRESETS[name]
