"""The shape of a model."""

from collections.abc import Collection
from typing import Literal, Self

from pydantic import Field, model_validator

from clearhead.options import Options

GATED = {"swiglu", "geglu"}  # feed-forwards that multiply two hidden layers
PARALLEL = {("pre", "decoder"), ("pre", "encoder")}  # (norm_position, architecture) of blocks with parallel residuals

OUTSIDE_THE_LOGITS = {"init", "dropout", "attention_dropout", "feedforward_dropout"}  # they change training alone
# Options that only some values of another option read: (the other option, its values that read them) -> the options.
READ_BY: dict[tuple[str, tuple[str, ...]], set[str]] = {
    ("positions", ("rope", "sinusoidal")): {"rope_theta"},
    ("positions", ("rope",)): {"partial_rotary_factor"},
    ("positions", ("relative",)): {"relative_buckets", "relative_max_distance"},
    ("architecture", ("encoder_decoder",)): {"source_vocab_size", "n_encoder_layers"},
    ("architecture", ("encoder", "encoder_decoder")): {"pad_id"},
}


def _round_up(width: float, multiple: int) -> int:
    return -int(-width // multiple) * multiple


class ModelConfig(Options):
    """The shape of a model."""

    architecture: Literal["decoder", "bigram", "encoder", "encoder_decoder"] = Field(
        "decoder", description="kind of model"
    )
    vocab_size: int = Field(65, ge=2, description="number of tokens; train takes it from the tokenizer")
    source_vocab_size: int | None = Field(
        None,
        ge=2,
        description="encoder-decoder: size of a separate source vocabulary; none: one vocabulary for both sides",
    )
    pad_id: int | None = Field(
        None, ge=0, description="the padding token, which no other token attends to; train takes it from the tokenizer"
    )
    block_size: int = Field(128, ge=1, description="context length in tokens; of source and target alike")
    n_layers: int = Field(4, ge=1, description="number of blocks")
    n_encoder_layers: int = Field(
        default_factory=lambda data: data.get("n_layers", 1),
        ge=1,
        description="encoder-decoder: number of encoder blocks (default: n_layers)",
    )
    n_heads: int = Field(4, ge=1, description="number of attention heads")
    n_kv_heads: int = Field(
        default_factory=lambda data: data.get("n_heads", 1),
        ge=1,
        description="key and value heads: 1 is multi-query, between 1 and n_heads is grouped-query (default: n_heads)",
    )
    d_model: int = Field(128, ge=1, description="width of the residual stream")
    head_dim: int = Field(
        default_factory=lambda data: max(1, data.get("d_model", 1) // data.get("n_heads", 1)),
        ge=1,
        description="width of one attention head (default: d_model / n_heads)",
    )
    norm: Literal["layernorm", "rmsnorm", "rmsnorm_plus_one"] = Field(
        "layernorm", description="kind of normalization; rmsnorm_plus_one scales by 1 + weight (Gemma)"
    )
    norm_position: Literal["pre", "post"] = Field(
        "pre", description="normalize before each sublayer, or after each residual sum"
    )
    norm_eps: float = Field(1e-5, gt=0, description="epsilon added to the variance")
    embedding_norm: bool = Field(False, description="normalize the embeddings before the first block (BERT, BART)")
    parallel_residual: bool = Field(
        False, description="run attention and feed-forward side by side on the same input (GPT-NeoX)"
    )
    feedforward: Literal["relu", "gelu", "gelu_tanh", "silu", "relu2", "swiglu", "geglu"] = Field(
        "gelu",
        description="kind of feed-forward; swiglu and geglu are gated; geglu and gelu_tanh use the tanh approximation",
    )
    d_ff: int = Field(
        default_factory=lambda data: (
            _round_up(8 / 3 * data.get("d_model", 1), 8)
            if data.get("feedforward") in GATED
            else 4 * data.get("d_model", 1)
        ),
        ge=1,
        description="hidden width of the feed-forward (default: 4 d_model, or two thirds of that when gated)",
    )
    positions: Literal["learned", "sinusoidal", "rope", "alibi", "relative", "none"] = Field(
        "learned", description="position encoding; relative is T5's learned bias by distance"
    )
    rope_theta: float = Field(
        10_000.0, gt=1, description="rotary and sinusoidal positions: the base of the wavelengths"
    )
    partial_rotary_factor: float = Field(
        1.0, gt=0, le=1, description="rotary positions: fraction of each head that is rotated"
    )
    relative_buckets: int = Field(32, ge=4, description="relative positions: number of distance buckets")
    relative_max_distance: int = Field(
        128, ge=2, description="relative positions: all larger distances share the last bucket"
    )
    qk_norm: bool = Field(False, description="normalize queries and keys per head (RMSNorm)")
    scale_attention: bool = Field(True, description="divide attention scores by sqrt(head_dim); T5 does not")
    attention_softcap: float | None = Field(
        None,
        gt=0,
        description="cap attention scores s at c with c tanh(s / c) (Gemma 2); none: off",
    )
    bias: bool = Field(False, description="biases in the linear layers")
    qkv_bias: bool = Field(
        default_factory=lambda data: data.get("bias", False),
        description="biases in the query, key and value projections (Qwen2; default: same as bias)",
    )
    sliding_window: int | None = Field(None, ge=1, description="attend to the last N tokens only; none: to all")
    tie_embeddings: bool = Field(True, description="share the embedding's weights with the head")
    scale_embedding: bool = Field(False, description="multiply embeddings by sqrt(d_model)")
    scale_logits: bool = Field(False, description="divide the head's input by sqrt(d_model) (T5)")
    head_transform: bool = Field(False, description="a dense layer and a norm before the head (BERT)")
    head_bias: bool = Field(False, description="a bias per token on the logits (BERT, Marian)")
    n_token_types: int = Field(
        0, ge=0, description="encoder: number of token types, each with an embedding (BERT); 0: none"
    )
    embedding_ngrams: int = Field(
        1, ge=1, le=8, description="add learned vectors for the last 2, 3, ... N tokens to the embedding; 1: none"
    )
    logit_ngrams: int = Field(
        1, ge=1, le=8, description="add learned vectors for the last 2, 3, ... N tokens to the head's input; 1: none"
    )
    ngram_rows: int = Field(16_384, ge=1, le=2**30, description="maximum number of vectors per n-gram length")
    decoder_start_id: int | None = Field(
        None, ge=0, description="encoder-decoder: the token that starts a translation; none: the end token"
    )
    init: Literal["normal", "xavier"] = Field("normal", description="how the weights are initialized")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the embedding and on each sublayer's output")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the attention weights (slow on a CPU)")
    feedforward_dropout: float = Field(0.0, ge=0, lt=1, description="dropout inside the feed-forward")

    @property
    def rotary_width(self) -> int:
        """How many of a head's numbers rotary positions turn."""
        return round(self.head_dim * self.partial_rotary_factor)

    @property
    def longest_ngram(self) -> int:
        """How many tokens the n-gram tables look at, the last one its own; 1 where there are none."""
        return max(self.embedding_ngrams, self.logit_ngrams)

    @property
    def keeps_scores(self) -> bool:
        """Whether a training step keeps the T x T attention weights, which torch's fused kernel otherwise avoids."""
        return self.attention_dropout > 0 or self.attention_softcap is not None

    @property
    def idle_options(self) -> set[str]:
        """The options that change no logit of this model."""
        unread = [options for (other, values), options in READ_BY.items() if getattr(self, other) not in values]
        return OUTSIDE_THE_LOGITS.union(*unread, {"ngram_rows"} if self.longest_ngram == 1 else ())

    def unusual_options(self, known: Collection[str]) -> dict[str, object]:
        """The options that are not `known`, change the logits and are not at their default -> that default.

        A format or an engine names the options that it understands and refuses a model with any of these, so an option
        that is new to the library is refused wherever nobody has taught it.
        """
        fields, values = type(self).model_fields, dict(self)
        defaults = {
            option: fields[option].get_default(call_default_factory=True, validated_data=values)
            for option in fields.keys() - self.idle_options - set(known)
        }
        return {option: defaults[option] for option in fields if defaults.get(option, values[option]) != values[option]}

    def first_token(self, end: int) -> int:
        """What the decoder reads before a translation, which the token `end` ends."""
        return end if self.decoder_start_id is None else self.decoder_start_id

    @model_validator(mode="after")
    def _refuse_impossible_shapes(self) -> Self:
        if self.longest_ngram > 1 and self.architecture != "decoder":
            raise ValueError("n-gram tables need the architecture 'decoder'")
        if self.architecture == "bigram":
            return self  # a bigram table has none of the shapes below
        if self.d_model % self.n_heads and "head_dim" not in self.model_fields_set:
            raise ValueError(
                f"d_model ({self.d_model}) is not divisible by n_heads ({self.n_heads}); "
                f"the nearest d_model that is: {max(1, round(self.d_model / self.n_heads)) * self.n_heads}"
            )
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads ({self.n_heads}) is not divisible by n_kv_heads ({self.n_kv_heads}); "
                "each key head must serve the same number of query heads"
            )
        if self.positions == "rope" and (self.rotary_width % 2 or not self.rotary_width):
            raise ValueError(
                f"rotary positions rotate pairs of dimensions, but {self.rotary_width} of a head's {self.head_dim} "
                f"would be rotated (d_model {self.d_model}, n_heads {self.n_heads}, partial_rotary_factor "
                f"{self.partial_rotary_factor:g}); choose an even width"
            )
        if self.positions == "relative" and self.relative_max_distance <= self.relative_buckets // 2:
            raise ValueError(
                f"relative_max_distance ({self.relative_max_distance}) is within the first half of relative_buckets "
                f"({self.relative_buckets}), which hold one distance each; choose a larger one"
            )
        if self.parallel_residual and (self.norm_position, self.architecture) not in PARALLEL:
            raise ValueError("parallel_residual needs norm_position 'pre' and the architecture 'decoder' or 'encoder'")
        if self.n_token_types and self.architecture != "encoder":
            raise ValueError("only the architecture 'encoder' has token types; leave n_token_types at 0")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        if self.sliding_window is not None and self.architecture != "decoder":
            raise ValueError("sliding_window needs the architecture 'decoder'")
        if self.decoder_start_id is not None and self.decoder_start_id >= self.vocab_size:
            raise ValueError(
                f"decoder_start_id ({self.decoder_start_id}) is no token of vocab_size ({self.vocab_size})"
            )
        for side, size in (("vocab_size", self.vocab_size), ("source_vocab_size", self.source_vocab_size)):
            if self.pad_id is not None and size is not None and self.pad_id >= size:
                raise ValueError(f"pad_id ({self.pad_id}) is no token of {side} ({size}); ids are below it")
        return self
