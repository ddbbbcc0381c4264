"""Every option of the library, once: its type, default, bounds and one line of help.

The command's flags, the TOML file and the JSON schema all derive from these frozen models. Imports no torch.
"""

import difflib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from clearhead.errors import UsageError

Layer = dict[str, Any]  # one source of options: a preset, a file, the flags; later layers win


class Options(BaseModel):
    """A frozen set of options that refuses what it does not know and says what was probably meant."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, Mapping) else ():
            if key not in cls.model_fields:
                raise ValueError(f"unknown option '{key}'{did_you_mean(str(key), cls.model_fields)}")
        return values

    @classmethod
    def read(cls, *layers: Mapping[str, Any]) -> Self:
        """The options that the layers give together, later ones winning.

        Raises:
            UsageError: one sentence naming the option, what is wrong with it and its value.
        """
        try:
            return cls.model_validate(merge(*layers))
        except ValidationError as error:
            raise UsageError(sentence(error)) from None


def did_you_mean(word: str, known: Any) -> str:
    """'; did you mean 'x'?' when a known word is close, else ''."""
    close = difflib.get_close_matches(word, [str(k) for k in known], n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def merge(*layers: Mapping[str, Any]) -> Layer:
    """Deep merge: tables are merged key by key, anything else is replaced by the later layer."""
    merged: Layer = {}
    for layer in layers:
        for key, value in layer.items():
            old = merged.get(key)
            merged[key] = merge(old if isinstance(old, Mapping) else {}, value) if isinstance(value, Mapping) else value
    return merged


def sentence(error: ValidationError) -> str:
    """A validation error as one sentence: where, what, and the value that was given."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    given = "" if isinstance(first["input"], Mapping | BaseModel) else f", not {first['input']!r}"
    return f"{where}: {message}{given}" if where else message


def read_toml(path: Path) -> Layer:
    """The options in a TOML file.

    Raises:
        UsageError: the file is missing or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no config file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read as TOML: {error}") from None


def told(config: "RunConfig") -> Layer:
    """The options as a layer for others to lie upon: what merely follows from other options is left out."""
    layer = config.model_dump()
    for name in ("n_kv_heads", "d_ff"):
        rest = {key: value for key, value in layer["model"].items() if key != name}
        if getattr(ModelConfig.read(rest), name) == layer["model"][name]:
            layer["model"] = rest
    return layer


def to_toml(options: Options, *, leave_out: dict[str, set[str]] | None = None) -> str:
    """Every option as TOML, for `read_toml`; TOML has no null, so an option that is none is left out as well."""
    return tomli_w.dumps(options.model_dump(exclude_none=True, exclude=leave_out))


def _round_up(width: float, multiple: int) -> int:
    return -int(-width // multiple) * multiple


class ModelConfig(Options):
    """The shape of a model."""

    architecture: Literal["decoder", "bigram"] = Field("decoder", description="which assembly of the parts")
    vocab_size: int = Field(65, ge=2, description="number of tokens; training takes it from the tokenizer")
    block_size: int = Field(128, ge=1, description="context length in tokens")
    n_layers: int = Field(4, ge=1, description="number of blocks")
    n_heads: int = Field(4, ge=1, description="attention heads; each is d_model / n_heads wide")
    n_kv_heads: int = Field(
        default_factory=lambda seen: seen.get("n_heads", 1),
        ge=1,
        description="heads of keys and values: n_heads is multi-head, 1 is multi-query, between is grouped-query",
    )
    d_model: int = Field(128, ge=1, description="width of the residual stream")
    norm: Literal["layernorm", "rmsnorm"] = Field("layernorm", description="kind of normalisation")
    norm_place: Literal["pre", "post"] = Field("pre", description="normalise before each sublayer, or after its sum")
    norm_epsilon: float = Field(1e-5, gt=0, description="added to the variance before its root is taken")
    feedforward: Literal["relu", "gelu", "relu2", "swiglu"] = Field("gelu", description="kind of feed-forward")
    d_ff: int = Field(
        default_factory=lambda seen: (
            _round_up(8 / 3 * seen.get("d_model", 1), 8)
            if seen.get("feedforward") == "swiglu"
            else 4 * seen.get("d_model", 1)
        ),
        ge=1,
        description="hidden width of the feed-forward; 4 d_model, or two thirds of that when gated (swiglu)",
    )
    positions: Literal["learned", "sinusoidal", "rope", "alibi", "none"] = Field(
        "learned", description="how a token knows where it stands"
    )
    rope_base: float = Field(10_000.0, gt=1, description="rotary and sinusoidal positions: longest wavelength / 2 pi")
    qk_norm: bool = Field(False, description="normalise queries and keys per head (RMSNorm) before they meet")
    bias: bool = Field(False, description="biases in the linear maps")
    window: int | None = Field(None, ge=1, description="attend to the last this-many tokens only; none: to all")
    tied: bool = Field(True, description="the head shares the embedding's weights")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the embedding and on each sublayer's output")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the attention weights (slow on a CPU)")
    feedforward_dropout: float = Field(0.0, ge=0, lt=1, description="dropout inside the feed-forward")

    @property
    def head_width(self) -> int:
        """K, the width of one head."""
        return self.d_model // self.n_heads

    @model_validator(mode="after")
    def _refuse_impossible_shapes(self) -> Self:
        if self.architecture == "bigram":
            return self  # a bigram table has none of the shapes below
        if self.d_model % self.n_heads:
            raise ValueError(
                f"d_model ({self.d_model}) is not divisible by n_heads ({self.n_heads}); "
                f"the nearest d_model that is: {max(1, round(self.d_model / self.n_heads)) * self.n_heads}"
            )
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads ({self.n_heads}) is not divisible by n_kv_heads ({self.n_kv_heads}); "
                "every key head must serve the same number of query heads"
            )
        if self.positions == "rope" and self.head_width % 2:
            raise ValueError(
                f"rotary positions turn pairs of numbers, but a head is {self.head_width} wide "
                f"(d_model {self.d_model} / n_heads {self.n_heads}); choose an even width"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        return self


class DataConfig(Options):
    """Which text, and how it becomes tokens."""

    source: str = Field("stories", description="a file, a folder, a .jsonl, '-' for standard input, or a corpus name")
    tokenizer: str = Field("auto", description="auto, char, bpe, or the path of a tokenizer.json")
    bpe_vocab_size: int = Field(4096, ge=257, description="number of tokens when a BPE is trained")
    val_fraction: float = Field(0.1, gt=0, lt=1, description="share of the text, at its end, held out for validation")
    isolate_documents: bool = Field(False, description="no attention from one document to another in the same window")


class TrainConfig(Options):
    """How the weights are found."""

    steps: int = Field(2000, ge=1, description="optimizer steps")
    batch_size: int = Field(32, ge=1, description="sequences of block_size tokens in one step")
    accumulate: int = Field(1, ge=1, description="split each batch into this many parts to save memory; same gradient")
    optimizer: Literal["adamw", "muon"] = Field("adamw", description="muon: Muon for matrices, AdamW for the rest")
    learning_rate: float = Field(3e-4, gt=0, description="the peak of the schedule")
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt", "warmup_stable_decay"] = Field(
        "cosine", description="how the rate moves after warm-up"
    )
    warmup_steps: int = Field(100, ge=0, description="steps over which the rate rises from zero")
    final_rate: float = Field(0.1, ge=0, le=1, description="the schedule's last rate as a share of its peak")
    beta1: float = Field(
        0.9, ge=0, lt=1, description="decay of the gradient's running mean (Adam's beta1, Muon's momentum)"
    )
    beta2: float = Field(0.95, ge=0, lt=1, description="decay of the squared gradient's running mean (Adam's beta2)")
    weight_decay: float = Field(0.1, ge=0, description="decay of the matrices; nothing else decays")
    clip: float = Field(1.0, gt=0, allow_inf_nan=True, description="largest gradient norm; inf: no clipping")
    eval_every: int = Field(250, ge=1, description="steps between evaluations on the held-out text")
    eval_tokens: int | None = Field(None, ge=1, description="evaluate on at most this many tokens; none: on all")
    save_every: int = Field(500, ge=1, description="steps between checkpoints")
    keep: int = Field(2, ge=1, description="checkpoints kept beside the best one")
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="type of the matrix products")
    compile: Literal["auto", "on", "off"] = Field("auto", description="torch.compile; auto: on a GPU only")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    tensorboard: bool = Field(False, description="also write for TensorBoard, into the run's folder (an extra)")
    threads: int | None = Field(None, ge=1, le=4096, description="processor threads; none: all cores")


class SamplingConfig(Options):
    """How tokens are drawn from logits, in the order in which the options are listed."""

    max_new_tokens: int = Field(200, ge=1, description="tokens to add to the prompt")
    repetition_penalty: float = Field(1.0, ge=1, description="divide the odds of tokens already present; 1: off")
    temperature: float = Field(0.8, description="below 1 sharper, above 1 flatter; for 0 use --greedy")
    top_k: int | None = Field(None, ge=1, description="keep the k likeliest tokens")
    top_p: float | None = Field(None, gt=0, le=1, description="keep the likeliest tokens that hold this probability")
    min_p: float | None = Field(None, ge=0, le=1, description="keep tokens at least this share as likely as the best")
    greedy: bool = Field(False, description="always take the likeliest token")
    stop: tuple[str, ...] = Field((), description="end a text before the first of these strings")
    num_samples: int = Field(1, ge=1, description="texts per prompt")
    seed: int | None = Field(None, ge=0, description="same seed, same text; none: a new one every time")

    @field_validator("temperature")
    @classmethod
    def _refuse_freezing(cls, temperature: float) -> float:
        if not 0 < temperature < math.inf:
            raise ValueError("must be above 0 and finite; to take the likeliest token every time, say --greedy")
        return temperature


class RunConfig(Options):
    """Everything that a training run was told: its clearhead.toml."""

    seed: int = Field(1, ge=0, lt=2**63, description="decides the first weights, the order of the data and the dropout")
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()
