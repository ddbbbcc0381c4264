"""Every option of the library, once: its type, default, bounds and one line of help.

The command's flags, the TOML file and the JSON schema all derive from these frozen models. Imports no torch.
"""

import math
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from clearhead.options import Options


def _round_up(width: float, multiple: int) -> int:
    return -int(-width // multiple) * multiple


GATED = {"swiglu", "geglu"}  # feed-forwards that multiply two hidden layers
PARALLEL = {("pre", "decoder"), ("pre", "encoder")}  # norm places and architectures of blocks with parallel residuals


class ModelConfig(Options):
    """The shape of a model."""

    architecture: Literal["decoder", "bigram", "encoder", "encoder_decoder"] = Field(
        "decoder", description="which assembly of the parts"
    )
    vocab_size: int = Field(65, ge=2, description="number of tokens; training takes it from the tokenizer")
    source_vocab_size: int | None = Field(
        None, ge=2, description="encoder-decoder: a vocabulary and embedding of the source's own; none: one for both"
    )
    pad_id: int | None = Field(
        None, ge=0, description="the token that fills up short rows, unseen by all others; training takes it likewise"
    )
    block_size: int = Field(128, ge=1, description="context length in tokens; of source and of target")
    n_layers: int = Field(4, ge=1, description="number of blocks")
    n_encoder_layers: int = Field(
        default_factory=lambda seen: seen.get("n_layers", 1),
        ge=1,
        description="encoder-decoder: blocks of the encoder; as many as the decoder's n_layers unless said",
    )
    n_heads: int = Field(4, ge=1, description="attention heads; each is d_model / n_heads wide")
    n_kv_heads: int = Field(
        default_factory=lambda seen: seen.get("n_heads", 1),
        ge=1,
        description="heads of keys and values: n_heads is multi-head, 1 is multi-query, between is grouped-query",
    )
    d_model: int = Field(128, ge=1, description="width of the residual stream")
    head_width: int = Field(
        default_factory=lambda seen: max(1, seen.get("d_model", 1) // seen.get("n_heads", 1)),
        ge=1,
        description="width of one attention head; d_model / n_heads unless said",
    )
    norm: Literal["layernorm", "rmsnorm", "rmsnorm_plus_one"] = Field(
        "layernorm", description="kind of normalisation; plus_one: its scale is one more than its weight (Gemma)"
    )
    norm_place: Literal["pre", "post"] = Field("pre", description="normalise before each sublayer, or after its sum")
    norm_epsilon: float = Field(1e-5, gt=0, description="added to the variance before its root is taken")
    embedding_norm: bool = Field(False, description="a norm of its own for what enters the stack (BERT, BART)")
    residual: Literal["sequential", "parallel"] = Field(
        "sequential", description="feed-forward after the attention, or beside it on the same input (GPT-NeoX)"
    )
    feedforward: Literal["relu", "gelu", "gelu_tanh", "silu", "relu2", "swiglu", "geglu"] = Field(
        "gelu", description="kind of feed-forward; geglu and swiglu are gated, geglu and gelu_tanh approximate the GELU"
    )
    d_ff: int = Field(
        default_factory=lambda seen: (
            _round_up(8 / 3 * seen.get("d_model", 1), 8)
            if seen.get("feedforward") in GATED
            else 4 * seen.get("d_model", 1)
        ),
        ge=1,
        description="hidden width of the feed-forward; 4 d_model, or two thirds of that when gated",
    )
    positions: Literal["learned", "sinusoidal", "rope", "alibi", "relative", "none"] = Field(
        "learned", description="how a token knows where it stands; relative: T5's learned bias by distance"
    )
    rope_base: float = Field(10_000.0, gt=1, description="rotary and sinusoidal positions: longest wavelength / 2 pi")
    rope_fraction: float = Field(1.0, gt=0, le=1, description="rotary positions: share of each head that is turned")
    relative_buckets: int = Field(32, ge=4, description="relative positions: classes of distance with a bias each")
    relative_distance: int = Field(128, ge=2, description="relative positions: all beyond it share the last class")
    qk_norm: bool = Field(False, description="normalise queries and keys per head (RMSNorm) before they meet")
    scale_scores: bool = Field(True, description="divide attention scores by sqrt(head_width); T5 does not")
    bias: bool = Field(False, description="biases in the linear maps")
    qkv_bias: bool = Field(
        default_factory=lambda seen: seen.get("bias", False),
        description="biases in the maps to queries, keys and values; as in the other maps unless said (Qwen2)",
    )
    window: int | None = Field(None, ge=1, description="attend to the last this-many tokens only; none: to all")
    tied: bool = Field(True, description="the head shares the embedding's weights")
    scale_embedding: bool = Field(False, description="multiply embeddings by sqrt(d_model)")
    scale_head: bool = Field(False, description="divide what the head reads by sqrt(d_model) (T5)")
    head_transform: bool = Field(False, description="a dense layer and a norm before the head (BERT)")
    head_bias: bool = Field(False, description="a bias for each token's logit (BERT, Marian)")
    n_segments: int = Field(0, ge=0, description="encoder: kinds of segments, each with an embedding (BERT); 0: none")
    embedding_ngrams: int = Field(1, ge=1, le=8, description="add vectors of the last 2 to N tokens to the embedding")
    logit_ngrams: int = Field(1, ge=1, le=8, description="the same to what the head reads; 1, as above, for none")
    ngram_rows: int = Field(16_384, ge=1, le=2**30, description="vectors for the n-grams of each length, at most")
    start_id: int | None = Field(
        None, ge=0, description="encoder-decoder: the token that a translation begins with; none: the one that ends it"
    )
    initialisation: Literal["normal", "xavier"] = Field("normal", description="how fresh weights are drawn")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the embedding and on each sublayer's output")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the attention weights (slow on a CPU)")
    feedforward_dropout: float = Field(0.0, ge=0, lt=1, description="dropout inside the feed-forward")

    @property
    def rotary_width(self) -> int:
        """How many of a head's numbers rotary positions turn."""
        return round(self.head_width * self.rope_fraction)

    @property
    def longest_ngram(self) -> int:
        """How many tokens the n-gram tables look at, the last one its own; 1 where there are none."""
        return max(self.embedding_ngrams, self.logit_ngrams)

    def first_token(self, end: int) -> int:
        """What the decoder reads before a translation, which the token `end` ends."""
        return end if self.start_id is None else self.start_id

    @model_validator(mode="after")
    def _refuse_impossible_shapes(self) -> Self:
        if self.longest_ngram > 1 and self.architecture != "decoder":
            raise ValueError("n-grams end with each token, so only the architecture 'decoder' has tables of them")
        if self.architecture == "bigram":
            return self  # a bigram table has none of the shapes below
        if self.d_model % self.n_heads and self.head_width == max(1, self.d_model // self.n_heads):
            raise ValueError(
                f"d_model ({self.d_model}) is not divisible by n_heads ({self.n_heads}); "
                f"the nearest d_model that is: {max(1, round(self.d_model / self.n_heads)) * self.n_heads}"
            )
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads ({self.n_heads}) is not divisible by n_kv_heads ({self.n_kv_heads}); "
                "every key head must serve the same number of query heads"
            )
        if self.positions == "rope" and (self.rotary_width % 2 or not self.rotary_width):
            raise ValueError(
                f"rotary positions turn pairs of numbers, but {self.rotary_width} of a head's {self.head_width} are "
                f"to be turned (d_model {self.d_model}, n_heads {self.n_heads}, rope_fraction {self.rope_fraction:g}); "
                "choose an even width"
            )
        if self.positions == "relative" and self.relative_distance <= self.relative_buckets // 2:
            raise ValueError(
                f"relative_distance ({self.relative_distance}) is within the first half of relative_buckets "
                f"({self.relative_buckets}), which are for one distance each; choose a larger one"
            )
        if self.residual == "parallel" and (self.norm_place, self.architecture) not in PARALLEL:
            raise ValueError(
                "parallel residuals need norm_place pre and one stack: the architecture decoder or encoder"
            )
        if self.n_segments and self.architecture != "encoder":
            raise ValueError("only the architecture 'encoder' has segments; leave n_segments at 0")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        if self.window is not None and self.architecture != "decoder":
            raise ValueError("a window looks back from each token, so only the architecture 'decoder' has one")
        if self.start_id is not None and self.start_id >= self.vocab_size:
            raise ValueError(f"start_id ({self.start_id}) is no token of vocab_size ({self.vocab_size})")
        for side, size in (("vocab_size", self.vocab_size), ("source_vocab_size", self.source_vocab_size)):
            if self.pad_id is not None and size is not None and self.pad_id >= size:
                raise ValueError(f"pad_id ({self.pad_id}) is no token of {side} ({size}); ids are below it")
        return self


class DataConfig(Options):
    """Which text, and how it becomes tokens."""

    source: str = Field("stories", description="a file, a folder, a .jsonl, '-' for standard input, or a corpus name")
    target: str | None = Field(None, description="the file of translations, line by line, where source holds one side")
    reverse: bool = Field(False, description="pairs: translate from the second language into the first")
    tokenizer: str = Field("auto", description="auto, char, bpe, or the path of a tokenizer.json")
    bpe_vocab_size: int = Field(4096, ge=257, description="number of tokens when a BPE is trained")
    vocabulary: Literal["joint", "separate"] = Field("joint", description="pairs: one vocabulary for both sides or two")
    bad_pairs: Literal["skip", "refuse"] = Field(
        "skip", description="pairs with an empty side or sides absurdly unequal: count and skip them, or stop"
    )
    mask_fraction: float = Field(0.15, gt=0, lt=1, description="objective masked: share of the tokens to be filled in")
    val_fraction: float = Field(0.1, gt=0, lt=1, description="share of the text, at its end, held out for validation")
    isolate_documents: bool = Field(False, description="no attention from one document to another in the same window")


class TrainConfig(Options):
    """How the weights are found."""

    steps: int = Field(2000, ge=1, description="optimizer steps")
    batch_size: int = Field(
        32, ge=1, le=2**31, description="sequences of block_size tokens a step; of pairs, as many as fill the same room"
    )
    accumulate: int = Field(1, ge=1, le=2**31, description="split each batch into N parts: less memory, same gradient")
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
    epsilon: float = Field(1e-8, gt=0, description="added to the root of the squared gradient's mean (Adam's epsilon)")
    weight_decay: float = Field(0.1, ge=0, description="decay of the matrices; nothing else decays")
    clip: float = Field(1.0, gt=0, allow_inf_nan=True, description="largest gradient norm; inf: no clipping")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of each target's mass that is spread evenly")
    smoothing_over: Literal["all", "others"] = Field(
        "all", description="over the whole vocabulary, as torch does, or over the V - 1 wrong tokens only"
    )
    average: int = Field(
        1, ge=1, description="in the end, try the mean of this many last checkpoints, and keep it if it is better"
    )
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


Weights = Literal["full", "bfloat16", "int8"]  # what matrices are rounded to


class EngineConfig(Options):
    """How a text is computed; what is written does not depend on the engine."""

    engine: Literal["auto", "plain", "compiled"] = Field(
        "auto",
        description="plain: call by call; compiled: with machine code, made once for a machine in a few seconds and "
        "kept; auto: compiled, on a CPU, where that saves time",
    )
    weights: Weights = Field(
        "full", description="round the model's matrices; compiled, a large model then writes a single text faster"
    )
    draft: str | None = Field(
        None,
        description="guess the next tokens and check several in one call: ngrams, from what was written before, or the "
        "name of a smaller run with the same tokenizer",
    )


class TranslationConfig(Options):
    """How a translation is searched for."""

    beam: int = Field(5, ge=1, description="hypotheses followed at once; 1: greedy")
    length_penalty: float = Field(0.6, ge=0, description="alpha of ((5 + length) / 6)^alpha; 0: none, more: longer")
    n_best: int = Field(1, ge=1, description="translations per sentence, the best first; at most as many as the beam")
    max_new_tokens: int | None = Field(None, ge=1, description="longest translation; none: twice the source, and ten")
    batch_size: int = Field(64, ge=1, description="sentences at once; does not change a translation")
    engine: Literal["auto", "plain", "compiled", "ctranslate2", "ctranslate2-int8"] = Field(
        "auto",
        description="who searches; auto: CTranslate2 if installed, or machine code, where that pays; in evaluate plain",
    )

    @model_validator(mode="after")
    def _refuse_more_than_the_beam(self) -> Self:
        if self.n_best > self.beam:
            raise ValueError(f"n_best ({self.n_best}) is more than the beam ({self.beam}) holds; raise beam")
        return self


class FillConfig(Options):
    """What is told of a masked token."""

    top_k: int = Field(5, ge=1, description="likeliest tokens shown for each mask")


# What a model learns -> the architectures that can.
OBJECTIVES: dict[str, tuple[str, ...]] = {
    "next": ("decoder", "bigram"),
    "masked": ("encoder",),
    "translation": ("encoder_decoder",),
}


class RunConfig(Options):
    """Everything that a training run was told: its clearhead.toml."""

    seed: int = Field(1, ge=0, lt=2**63, description="decides the first weights, the order of the data and the dropout")
    objective: Literal["next", "masked", "translation"] = Field(
        "next", description="predict the next token, masked tokens, or a sentence's translation"
    )
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def _refuse_an_objective_that_the_model_cannot_learn(self) -> Self:
        able = OBJECTIVES[self.objective]
        if self.model.architecture not in able:
            raise ValueError(
                f"the objective '{self.objective}' needs the architecture {' or '.join(able)}, "
                f"not {self.model.architecture}"
            )
        return self
