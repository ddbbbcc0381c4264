"""The shape of a model."""

from typing import Literal, Self

from pydantic import Field, model_validator

from clearhead.options import Options

GATED = {"swiglu", "geglu"}  # feed-forwards that multiply two hidden layers
PARALLEL = {("pre", "decoder"), ("pre", "encoder")}  # norm places and architectures of blocks with parallel residuals


def _round_up(width: float, multiple: int) -> int:
    return -int(-width // multiple) * multiple


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
        default_factory=lambda data: data.get("n_layers", 1),
        ge=1,
        description="encoder-decoder: blocks of the encoder; as many as the decoder's n_layers unless said",
    )
    n_heads: int = Field(4, ge=1, description="attention heads; each is d_model / n_heads wide")
    n_kv_heads: int = Field(
        default_factory=lambda data: data.get("n_heads", 1),
        ge=1,
        description="heads of keys and values: n_heads is multi-head, 1 is multi-query, between is grouped-query",
    )
    d_model: int = Field(128, ge=1, description="width of the residual stream")
    head_dim: int = Field(
        default_factory=lambda data: max(1, data.get("d_model", 1) // data.get("n_heads", 1)),
        ge=1,
        description="width of one attention head; d_model / n_heads unless said",
    )
    norm: Literal["layernorm", "rmsnorm", "rmsnorm_plus_one"] = Field(
        "layernorm", description="kind of normalization; plus_one: its scale is one more than its weight (Gemma)"
    )
    norm_position: Literal["pre", "post"] = Field("pre", description="normalize before each sublayer, or after its sum")
    norm_eps: float = Field(1e-5, gt=0, description="added to the variance before its root is taken")
    embedding_norm: bool = Field(False, description="a norm of its own for what enters the stack (BERT, BART)")
    parallel_residual: bool = Field(
        False, description="feed-forward beside the attention, on the same input, not after it (GPT-NeoX)"
    )
    feedforward: Literal["relu", "gelu", "gelu_tanh", "silu", "relu2", "swiglu", "geglu"] = Field(
        "gelu", description="kind of feed-forward; geglu and swiglu are gated, geglu and gelu_tanh approximate the GELU"
    )
    d_ff: int = Field(
        default_factory=lambda data: (
            _round_up(8 / 3 * data.get("d_model", 1), 8)
            if data.get("feedforward") in GATED
            else 4 * data.get("d_model", 1)
        ),
        ge=1,
        description="hidden width of the feed-forward; 4 d_model, or two thirds of that when gated",
    )
    positions: Literal["learned", "sinusoidal", "rope", "alibi", "relative", "none"] = Field(
        "learned", description="how a token knows where it stands; relative: T5's learned bias by distance"
    )
    rope_theta: float = Field(10_000.0, gt=1, description="rotary and sinusoidal positions: longest wavelength / 2 pi")
    partial_rotary_factor: float = Field(
        1.0, gt=0, le=1, description="rotary positions: share of each head that is turned"
    )
    relative_buckets: int = Field(32, ge=4, description="relative positions: classes of distance with a bias each")
    relative_max_distance: int = Field(128, ge=2, description="relative positions: all beyond it share the last class")
    qk_norm: bool = Field(False, description="normalize queries and keys per head (RMSNorm) before they meet")
    scale_attention: bool = Field(True, description="divide attention scores by sqrt(head_dim); T5 does not")
    bias: bool = Field(False, description="biases in the linear maps")
    qkv_bias: bool = Field(
        default_factory=lambda data: data.get("bias", False),
        description="biases in the maps to queries, keys and values; as in the other maps unless said (Qwen2)",
    )
    sliding_window: int | None = Field(None, ge=1, description="attend to the last this-many tokens only; none: to all")
    tie_embeddings: bool = Field(True, description="the head shares the embedding's weights")
    scale_embedding: bool = Field(False, description="multiply embeddings by sqrt(d_model)")
    scale_logits: bool = Field(False, description="divide what the head reads by sqrt(d_model) (T5)")
    head_transform: bool = Field(False, description="a dense layer and a norm before the head (BERT)")
    head_bias: bool = Field(False, description="a bias for each token's logit (BERT, Marian)")
    n_token_types: int = Field(
        0, ge=0, description="encoder: kinds of segments, each with an embedding (BERT); 0: none"
    )
    embedding_ngrams: int = Field(1, ge=1, le=8, description="add vectors of the last 2 to N tokens to the embedding")
    logit_ngrams: int = Field(1, ge=1, le=8, description="the same to what the head reads; 1, as above, for none")
    ngram_rows: int = Field(16_384, ge=1, le=2**30, description="vectors for the n-grams of each length, at most")
    decoder_start_id: int | None = Field(
        None, ge=0, description="encoder-decoder: the token that a translation begins with; none: the one that ends it"
    )
    init: Literal["normal", "xavier"] = Field("normal", description="how fresh weights are drawn")
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

    def first_token(self, end: int) -> int:
        """What the decoder reads before a translation, which the token `end` ends."""
        return end if self.decoder_start_id is None else self.decoder_start_id

    @model_validator(mode="after")
    def _refuse_impossible_shapes(self) -> Self:
        if self.longest_ngram > 1 and self.architecture != "decoder":
            raise ValueError("n-grams end with each token, so only the architecture 'decoder' has tables of them")
        if self.architecture == "bigram":
            return self  # a bigram table has none of the shapes below
        if self.d_model % self.n_heads and self.head_dim == max(1, self.d_model // self.n_heads):
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
                f"rotary positions turn pairs of numbers, but {self.rotary_width} of a head's {self.head_dim} are "
                f"to be turned (d_model {self.d_model}, n_heads {self.n_heads}, partial_rotary_factor "
                f"{self.partial_rotary_factor:g}); "
                "choose an even width"
            )
        if self.positions == "relative" and self.relative_max_distance <= self.relative_buckets // 2:
            raise ValueError(
                f"relative_max_distance ({self.relative_max_distance}) is within the first half of relative_buckets "
                f"({self.relative_buckets}), which are for one distance each; choose a larger one"
            )
        if self.parallel_residual and (self.norm_position, self.architecture) not in PARALLEL:
            raise ValueError(
                "parallel residuals need norm_position pre and one stack: the architecture decoder or encoder"
            )
        if self.n_token_types and self.architecture != "encoder":
            raise ValueError("only the architecture 'encoder' has segments; leave n_token_types at 0")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        if self.sliding_window is not None and self.architecture != "decoder":
            raise ValueError("a window looks back from each token, so only the architecture 'decoder' has one")
        if self.decoder_start_id is not None and self.decoder_start_id >= self.vocab_size:
            raise ValueError(
                f"decoder_start_id ({self.decoder_start_id}) is no token of vocab_size ({self.vocab_size})"
            )
        for side, size in (("vocab_size", self.vocab_size), ("source_vocab_size", self.source_vocab_size)):
            if self.pad_id is not None and size is not None and self.pad_id >= size:
                raise ValueError(f"pad_id ({self.pad_id}) is no token of {side} ({size}); ids are below it")
        return self
