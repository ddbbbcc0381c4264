"""How a trained model is used: sampling, the engine, beam search, masked tokens."""

import math
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from clearhead.options import Options

Dtype = Literal["float32", "bfloat16", "int8"]  # what matrices are rounded to


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


class EngineConfig(Options):
    """How a text is computed; what is written does not depend on the engine."""

    engine: Literal["auto", "eager", "native"] = Field(
        "auto",
        description="eager: PyTorch, call by call; native: C++, compiled once for a machine in a few seconds and kept; "
        "auto: native, on a CPU, where that saves time",
    )
    dtype: Dtype = Field(
        "float32", description="round the model's matrices; native, a large model then writes a single text faster"
    )
    draft: str | None = Field(
        None,
        description="guess the next tokens and check several in one call: ngrams, from what was written before, or the "
        "name of a smaller run with the same tokenizer",
    )


class TranslationConfig(Options):
    """How a translation is searched for."""

    beam_size: int = Field(5, ge=1, description="hypotheses followed at once; 1: greedy")
    length_penalty: float = Field(0.6, ge=0, description="alpha of ((5 + length) / 6)^alpha; 0: none, more: longer")
    n_best: int = Field(1, ge=1, description="translations per sentence, the best first; at most as many as the beam")
    max_new_tokens: int | None = Field(None, ge=1, description="longest translation; none: twice the source, and ten")
    batch_size: int = Field(64, ge=1, description="sentences at once; does not change a translation")
    engine: Literal["auto", "eager", "native", "ctranslate2", "ctranslate2-int8"] = Field(
        "auto",
        description="who searches; auto: CTranslate2 if installed, or native code, where that pays; in evaluate eager",
    )

    @model_validator(mode="after")
    def _refuse_more_than_the_beam(self) -> Self:
        if self.n_best > self.beam_size:
            raise ValueError(f"n_best ({self.n_best}) is more than beam_size ({self.beam_size}) holds; raise beam_size")
        return self


class FillConfig(Options):
    """What is told of a masked token."""

    top_k: int = Field(5, ge=1, description="likeliest tokens shown for each mask")
