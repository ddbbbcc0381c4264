"""What requests for texts have in common: sampling, stops, streams; and how their answers are counted."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Annotated, cast

from pydantic import Field

from clearhead.config import SamplingConfig
from clearhead.config.serving import ServerConfig
from clearhead.data import Tokenizer, UnseenCharacterError
from clearhead.errors import UsageError
from clearhead.inference import TextOptions, encode_prompt
from clearhead.inference.constraints import Constraint
from clearhead.inference.ids import known_ids
from clearhead.inference.text_stream import INCOMPLETE, TextStream
from clearhead.server.http.bodies import RequestBody
from clearhead.server.http.errors import HttpError
from clearhead.server.openai.formats import Compile, ResponseFormat, StructuredOutputs, compiling

Texts = Annotated[list[str], Field(fail_fast=True)]
Ids = Annotated[list[int], Field(fail_fast=True)]
Prompts = str | Texts | Ids | Annotated[list[Ids], Field(fail_fast=True)]
Bias = Annotated[float, Field(ge=-100, le=100)]

MAX_STOP_CHARACTERS = 256  # of one stop string: each new character is compared with all of its beginnings
MAX_BIASES = 1024
COLDEST = 1e-4  # a lower temperature than this is greedy; its logits might not be finite any more
LEAST_TOP_P = 1e-9  # for 0, which leaves the likeliest token as this does
LONG = 10_000  # characters; what is longer is encoded on another thread


class StreamOptions(RequestBody):
    """What a stream says besides the text. Nothing is ever obfuscated, as that would help nobody on this machine."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class TextFields(RequestBody):
    """The fields of a completion and of a chat. Those without a value are as OpenAI has them; `user` is not looked at.

    `top_k`, `min_p` and `repetition_penalty` are ours, as in `clearhead generate`; `structured_outputs` is vLLM's.
    """

    model: str | None = Field(None, max_length=512)
    n: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=1, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, Bias] | None = Field(None, max_length=MAX_BIASES)
    stop: str | Texts | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    user: str | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with how many tokens there were."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def compile_form(self) -> Compile | None:
        """What makes the constraint of its texts; None where they have none.

        Raises:
            HttpError: 400, as in `compiling`.
        """
        return compiling(self.response_format, self.structured_outputs)

    def number_of_texts(self, config: ServerConfig) -> int:
        """Per prompt.

        Raises:
            HttpError: 400, more than the server's limit.
        """
        n = self.n or 1
        if n > config.max_n:
            raise HttpError(400, f"`n` must be at most {config.max_n} on this server, not {n}", "n", "invalid_value")
        return n

    def sampling(self, config: ServerConfig, max_tokens: int) -> SamplingConfig:
        """How its tokens are drawn.

        Raises:
            HttpError: 400, one of the server's limits is passed.
        """
        if max_tokens > config.max_tokens:
            raise HttpError(
                400,
                f"`max_tokens` must be at most {config.max_tokens} on this server, not {max_tokens}",
                "max_tokens",
                "invalid_value",
            )
        if self.stream_options is not None and not self.stream:
            raise HttpError(400, "`stream_options` needs `stream`: true", "stream_options", "invalid_value")
        temperature = 1.0 if self.temperature is None else self.temperature
        return SamplingConfig(
            max_new_tokens=max(1, max_tokens),
            temperature=temperature if temperature >= COLDEST else 0.0,
            top_p=None if self.top_p is None else max(self.top_p, LEAST_TOP_P),
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            stop=self._stops(config),
            seed=None if self.seed is None else self.seed % 2**63,
            num_samples=self.number_of_texts(config),
        )

    def biases(self, vocab_size: int) -> dict[int, float]:
        """What is added to the logit of which token.

        Raises:
            HttpError: 400, one is none of the model's tokens.
        """
        biases = dict[int, float]()
        for name, bias in (self.logit_bias or {}).items():
            if not (name.isdecimal() and name.isascii() and len(name) < 12 and int(name) < vocab_size):
                raise HttpError(
                    400,
                    f"`logit_bias` must have ids of tokens as its keys, 0 to {vocab_size - 1}",
                    "logit_bias",
                    "invalid_value",
                )
            biases[int(name)] = bias
        return biases

    def options(
        self,
        vocab_size: int,
        *,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        prompt_only: bool = False,
        stop_ids: Sequence[int] = (),
        constraint: Constraint | None = None,
    ) -> TextOptions:
        """What each text asks for beside its sampling.

        Raises:
            HttpError: 400, as in `biases`.
        """
        return TextOptions(
            logprobs=logprobs,
            logit_bias=self.biases(vocab_size),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            stop_ids=frozenset(stop_ids),
            prompt_logprobs=prompt_logprobs,
            prompt_only=prompt_only,
            constraint=constraint,
        )

    def _stops(self, config: ServerConfig) -> tuple[str, ...]:
        stops = () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        rule = None
        if len(stops) > config.max_stop:
            rule = f"hold at most {config.max_stop} texts on this server, not {len(stops)}"
        elif "" in stops:
            rule = "not be empty, since that would end every text at once"
        elif any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
            rule = f"hold texts of at most {MAX_STOP_CHARACTERS} characters"
        if rule:
            raise HttpError(400, f"`stop` must {rule}", "stop", "invalid_value")
        return stops


async def encode_prompts(
    prompts: Prompts, tokenizer: Tokenizer, vocab_size: int, config: ServerConfig, field: str, *, framed: bool = False
) -> list[tuple[list[int], str]]:
    """The ids of each prompt, and its text.

    Args:
        prompts: as the request has them.
        tokenizer: of the model.
        vocab_size: the model's.
        config: how many there may be.
        field: that they stand in.
        framed: a text is followed by the special tokens that the model expects after one.

    Raises:
        HttpError: 400, there is none or there are too many; one cannot be encoded, is empty, or has unknown ids.
    """
    several = cast(list[str] | list[list[int]], [prompts] if _is_alone(prompts) else prompts)
    if not several:
        raise HttpError(400, f"`{field}` is empty; give at least one", field, "invalid_value")
    if len(several) > config.max_prompts:
        raise HttpError(
            400, f"`{field}` must hold at most {config.max_prompts} texts, not {len(several)}", field, "invalid_value"
        )

    ending = tokenizer.ending if framed else ()

    def encode() -> list[tuple[list[int], str]]:
        return [
            ([*encode_prompt(tokenizer, prompt), *ending], prompt)
            if isinstance(prompt, str)
            else (known_ids([prompt], vocab_size)[0], tokenizer.decode(prompt))
            for prompt in several
        ]

    try:
        return await asyncio.to_thread(encode) if sum(map(len, several)) > LONG else encode()
    except (UsageError, UnseenCharacterError) as error:
        raise HttpError(400, f"`{field}`: {error}", field, "invalid_value") from None


def _is_alone(prompts: Prompts) -> bool:
    return isinstance(prompts, str) or bool(prompts and isinstance(prompts[0], int))


def text_offsets(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Where in the text of these ids each of them begins, in characters."""
    stream, offsets, length = TextStream(tokenizer.decode, []), list[int](), 0
    for token in ids:
        offsets.append(length)
        length += len(stream.add(token))
    return offsets


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token as a text of its own; one that is none, such as half a character or an end, by its number."""
    text = tokenizer.decode([token])
    return unwritten(token) if not text or INCOMPLETE in text else text


def unwritten(token: int) -> str:
    """What stands for a token that is no text of its own."""
    return f"token_id:{token}"


def usage(prompt_tokens: int, completion_tokens: int | None = None) -> dict[str, object]:
    """How many tokens a request has cost. Those that ended a text count, though it does not show them."""
    total = prompt_tokens + (completion_tokens or 0)
    counts: dict[str, object] = {"prompt_tokens": prompt_tokens, "total_tokens": total}
    return counts if completion_tokens is None else counts | {"completion_tokens": completion_tokens}


def head(prefix: str, kind: str, model: str) -> dict[str, object]:
    """What every answer begins with."""
    return {"id": f"{prefix}-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}
