"""How a trained model is used: sampling, the engine, beam search, masked tokens."""

from typing import Literal, Self

from pydantic import Field, model_validator

from clearhead.options import Options

Dtype = Literal["float32", "bfloat16", "int8"]  # what matrices are rounded to


class SamplingConfig(Options):
    """How tokens are drawn from logits, in the order in which the options are listed."""

    max_new_tokens: int = Field(200, ge=1, description="maximum number of tokens to add to the prompt")
    repetition_penalty: float = Field(
        1.0,
        ge=1,
        description="divide positive logits of tokens already in the text by this, and multiply negative ones; 1: off",
    )
    temperature: float = Field(0.8, ge=0, description="below 1: sharper, above 1: flatter; 0: greedy")
    top_k: int | None = Field(None, ge=1, description="sample from the k likeliest tokens only")
    top_p: float | None = Field(
        None, gt=0, le=1, description="sample from the smallest set of tokens with at least this total probability"
    )
    min_p: float | None = Field(
        None, ge=0, le=1, description="drop tokens less likely than this fraction of the likeliest one"
    )
    greedy: bool = Field(
        default_factory=lambda data: data.get("temperature") == 0,
        description="always take the likeliest token, whatever the temperature",
    )
    stop: tuple[str, ...] = Field((), description="end a text before this string; repeat the option for several")
    regex: str | None = Field(
        None, description="the text matches this regular expression as a whole (Rust's syntax; no look-around)"
    )
    json_schema: str | None = Field(
        None, description="the text is JSON and valid by this schema: its text, which begins with {, or a file's name"
    )
    num_samples: int = Field(1, ge=1, description="number of texts per prompt")
    seed: int | None = Field(None, ge=0, description="the same seed gives the same text; none: a new text every time")

    @property
    def is_constrained(self) -> bool:
        """Whether the text is held to a form."""
        return self.regex is not None or self.json_schema is not None

    @model_validator(mode="after")
    def _refuse_two_answers(self) -> Self:
        if not self.greedy and self.temperature == 0:
            raise ValueError("temperature 0 is greedy; leave out greedy = false, or choose a temperature above 0")
        if self.regex is not None and self.json_schema is not None:
            raise ValueError("regex and json_schema are two forms, and a text has one; leave one of them out")
        return self


class EngineConfig(Options):
    """How a text is computed; what is written does not depend on the engine."""

    engine: Literal["auto", "eager", "native"] = Field(
        "auto",
        description="eager: PyTorch, one call per token; native: a C++ engine for CPUs, compiled once, in seconds; "
        "auto: native where it saves time",
    )
    dtype: Dtype = Field(
        "float32",
        description="precision of the weight matrices; bfloat16 and int8 make large models faster on the native engine",
    )
    draft: str | None = Field(
        None,
        description="speculative decoding: ngrams guesses the next tokens from the text so far; a run's name lets that "
        "smaller model guess (it needs the same tokenizer)",
    )


class GenerationConfig(SamplingConfig, EngineConfig):
    """How tokens are drawn, and how that is computed: what `generate` takes."""


class TranslationConfig(Options):
    """How a translation is searched for."""

    beam_size: int = Field(5, ge=1, description="beam width; 1 is greedy search")
    length_penalty: float = Field(
        0.6,
        ge=0,
        description="alpha in ((5 + length) / 6)^alpha; 0: off, larger: longer translations",
    )
    n_best: int = Field(1, ge=1, description="translations per sentence, best first; at most beam_size")
    max_new_tokens: int | None = Field(
        None, ge=1, description="maximum length of a translation; none: twice the source's length plus ten"
    )
    batch_size: int = Field(64, ge=1, description="sentences per batch; does not change the translations")
    engine: Literal["auto", "eager", "native", "ctranslate2", "ctranslate2-int8"] = Field(
        "auto",
        description="which engine searches; auto: ctranslate2 or native where it saves time (in evaluate: eager)",
    )

    @model_validator(mode="after")
    def _refuse_more_than_the_beam(self) -> Self:
        if self.n_best > self.beam_size:
            raise ValueError(f"n_best ({self.n_best}) is more than beam_size ({self.beam_size}) holds; raise beam_size")
        return self


class FillConfig(Options):
    """Options for filling masked tokens."""

    top_k: int = Field(5, ge=1, description="candidates shown for each mask")
