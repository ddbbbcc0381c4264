"""Named starting points, as data. A preset is one layer of options under the person's own; it branches on nothing."""

from dataclasses import dataclass, field

from clearhead.config import Layer, did_you_mean
from clearhead.errors import UsageError


@dataclass(frozen=True)
class Preset:
    """Options that belong together, and why."""

    about: str
    model: Layer
    train: Layer
    data: Layer = field(default_factory=dict)

    @property
    def options(self) -> Layer:
        """The preset as one layer of a `RunConfig`."""
        return {"model": self.model, "train": self.train, "data": self.data}


DEFAULT = "small"

PRESETS: dict[str, Preset] = {
    "small": Preset(
        about="the default, tuned for the lowest loss after three minutes on two CPU cores",
        model={
            "block_size": 128,
            "n_layers": 4,
            "n_heads": 4,
            "d_model": 128,
            "norm": "rmsnorm",
            "qk_norm": True,
            "feedforward": "swiglu",
            "positions": "rope",
            "tied": False,
        },
        train={
            "steps": 1000,
            "batch_size": 16,
            "optimizer": "muon",
            "learning_rate": 0.01,
            "schedule": "linear",
            "warmup_steps": 10,
            "final_rate": 0.0,
        },
    ),
    "bigram": Preset(
        about="the (V, V) table that every tutorial starts from",
        model={"architecture": "bigram", "block_size": 64},
        train={
            "steps": 500,
            "batch_size": 32,
            "learning_rate": 0.03,
            "schedule": "linear",
            "warmup_steps": 10,
            "final_rate": 0.0,
            "weight_decay": 0.0,
        },
    ),
    "tutorial": Preset(
        about="the tutorials' character model: 813,440 parameters at 65 characters, AdamW",
        model={
            "block_size": 128,
            "n_layers": 4,
            "n_heads": 4,
            "d_model": 128,
            "feedforward": "relu",
            "dropout": 0.1,
        },
        train={"steps": 5000, "batch_size": 64, "learning_rate": 3e-4, "schedule": "warmup_stable_decay"},
    ),
    "nanogpt-baby": Preset(
        about="nanoGPT's Shakespeare model for one GPU: 10.7 M parameters",
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
        train={"steps": 20_000, "batch_size": 32, "accumulate": 4, "learning_rate": 6e-4, "warmup_steps": 1000},
        data={"tokenizer": "bpe", "bpe_vocab_size": 50_257},
    ),
    "llama": Preset(
        about="Llama's layout, small: RMSNorm, rotary positions, SwiGLU, grouped queries, an untied head",
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
            "tied": False,
        },
        train={"steps": 10_000, "batch_size": 32, "learning_rate": 6e-4, "warmup_steps": 200},
        data={"tokenizer": "bpe", "bpe_vocab_size": 8192},
    ),
}


def preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        UsageError: there is none; names the closest.
    """
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise UsageError(f"there is no preset '{name}'{did_you_mean(name, PRESETS)} (presets: {known})")
    return PRESETS[name]
