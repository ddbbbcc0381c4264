"""The state of each request: its sampling, its draft length, and when its text ends."""

import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from clearhead.config import SamplingConfig
from clearhead.errors import UsageError
from clearhead.inference.sampling import DRAWN_AHEAD, draw, filter_logits, row_seeds, sample
from clearhead.models.eval_mode import refuse_not_finite

# What a random number is for: a token, accepting a draft token, and the token in place of a rejected one.
Purpose = Literal["token", "accept", "resample"]
PURPOSES = get_args(Purpose)
FinishReason = Literal["stop", "length", "cancelled", "error"]
FIRST_DRAFT_LENGTH, MAX_DRAFT_LENGTH = 4, 16


@dataclass(frozen=True)
class TextOptions:
    """What a text may ask for beside its sampling, by the names of OpenAI's interface.

    Args:
        logprobs: report the log-probability of each token, and of that many of the likeliest.
        prompt_logprobs: the same for each token of the prompt but the first, before which the model knows nothing.
        prompt_only: read the prompt and write nothing, whatever `max_new_tokens` says.
        logit_bias: added to the logits of some tokens.
        presence_penalty: subtracted from the logit of a token that the text has written already.
        frequency_penalty: the same, for each time that it has.
        stop_ids: tokens that end the text, besides eos.

    Raises:
        UsageError: `logprobs` or `prompt_logprobs` is negative, or a bias or penalty is not finite.
    """

    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop_ids: frozenset[int] = frozenset()
    prompt_logprobs: int | None = None
    prompt_only: bool = False

    def __post_init__(self) -> None:
        for name, number in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if number is not None and number < 0:
                raise UsageError(f"`{name}` must be at least 0, not {number}")
        numbers = (*self.logit_bias.values(), self.presence_penalty, self.frequency_penalty)
        if not all(map(math.isfinite, numbers)):
            raise UsageError("`logit_bias`, `presence_penalty` and `frequency_penalty` must be finite numbers")

    @property
    def changes_logits(self) -> bool:
        """Whether tokens are sampled from other logits than the model's."""
        return bool(self.logit_bias or self.presence_penalty or self.frequency_penalty)


class TokenLogprobs(NamedTuple):
    """The natural logarithm of a token's probability, as the model has it, and of the likeliest tokens there."""

    logprob: float
    top: list[tuple[int, float]]
    token: int


PLAIN = TextOptions()
OnLogits = Callable[[int, Tensor], None]  # sees the logits (T, V) of a prompt after its token of this number and on


def token_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprobs]:
    """Of these tokens, and of the `top` likeliest in their places, by the logits (T, V); T may be more."""
    log_probs = logits[: len(tokens)].to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    values, ids = log_probs.topk(min(top, log_probs.shape[-1]))
    chosen = log_probs.gather(1, torch.tensor(tokens, dtype=torch.int64, device=log_probs.device)[:, None])[:, 0]
    rows = zip(chosen.tolist(), tokens, ids.tolist(), values.tolist(), strict=True)
    return [TokenLogprobs(own, list(zip(*likeliest, strict=True)), token) for own, token, *likeliest in rows]


class GenerationRequest:
    """A prompt and the text that is being generated after it."""

    def __init__(
        self,
        name: int,
        prompt: Sequence[int],
        config: SamplingConfig,
        *,
        seed: int,
        end: int | None = None,
        options: TextOptions = PLAIN,
    ) -> None:
        """
        Args:
            name: the key of its tokens in what `GenerationBatch.step` returns.
            prompt: the ids it begins with.
            config: the sampling.
            seed: of its random numbers.
            end: eos; not part of the text.
            options: what else it asks for.
        """
        self.name, self.prompt, self.config, self.options = name, prompt, config, options
        self.ends = options.stop_ids | ({end} if end is not None else set())
        self.finish_reason: FinishReason | None = None
        self.end_token: int | None = None  # that ended it
        self._written = Counter[int]()  # tokens of the text, where penalties count them
        self.last_token = prompt[-1]
        self.present = set(prompt) if config.repetition_penalty != 1 else set[int]()
        self.remaining = 0 if options.prompt_only else config.max_new_tokens
        self.prompt_logprobs = list[TokenLogprobs]()
        self.draft_length = FIRST_DRAFT_LENGTH
        self.is_alone = False  # its prompt is to be read by itself
        self._seed, self._drawn = seed, 0
        self._generators = dict[Purpose, torch.Generator]()
        self._uniforms = dict[Purpose, list[float]]()

    def uniforms(self, start: int, count: int, purpose: Purpose = "token") -> list[float]:
        """`count` random numbers for one purpose, beginning `start` tokens after the last one."""
        start += self._drawn
        if purpose not in self._generators:
            self._generators[purpose] = torch.Generator().manual_seed(self._seed ^ PURPOSES.index(purpose))
            self._uniforms[purpose] = []
        numbers = self._uniforms[purpose]
        while len(numbers) < start + count:
            numbers += torch.rand(DRAWN_AHEAD, generator=self._generators[purpose]).tolist()
        return numbers[start : start + count]

    def append(self, tokens: Sequence[int]) -> list[int]:
        """Append tokens; return those before eos or the length limit. At either, `remaining` becomes 0."""
        self._drawn += len(tokens)
        self.last_token = tokens[-1]
        if self.config.repetition_penalty != 1:
            self.present.update(tokens)
        written = list(tokens[: self.remaining])
        self.remaining -= len(written)
        self.finish_reason = None if self.remaining else "length"
        end = next((index for index, token in enumerate(written) if token in self.ends), None)
        if end is not None:
            self.end_token = written[end]
            written, self.remaining, self.finish_reason = written[:end], 0, "stop"
        if self.options.presence_penalty or self.options.frequency_penalty:
            self._written.update(written)
        return written

    def finish(self, reason: "FinishReason") -> None:
        """End the text here."""
        self.remaining, self.finish_reason = 0, reason

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.finish_reason is None

    @property
    def on_logits(self) -> OnLogits | None:
        """What must see the logits of the prompt; None where nothing is reported of it."""
        return None if self.options.prompt_logprobs is None else self._score_prompt

    def _score_prompt(self, start: int, logits: Tensor) -> None:
        """Take in the log-probabilities of the tokens that follow `start` and others, by the logits (T, V) there."""
        assert self.options.prompt_logprobs is not None, "nobody else calls this"
        tokens = self.prompt[start + 1 : start + 1 + len(logits)]
        refuse_not_finite(logits)
        del self.prompt_logprobs[start:]  # what an interrupted reading has left
        self.prompt_logprobs += token_logprobs(logits, tokens, self.options.prompt_logprobs)

    @property
    def needs_logits(self) -> bool:
        """Whether its tokens are sampled here and not within native code, which gives no logits for each of several."""
        return self.options.logprobs is not None or self.options.changes_logits

    def adjusted(self, logits: Tensor) -> Tensor:
        """Logits (T, V), at least float32, with its bias and its penalties."""
        options = self.options
        changes = dict(options.logit_bias)
        for token, count in self._written.items():
            penalty = options.presence_penalty + options.frequency_penalty * count
            changes[token] = changes.get(token, 0.0) - penalty
        tokens = torch.tensor([*changes], dtype=torch.int64, device=logits.device)
        values = torch.tensor([*changes.values()], device=logits.device)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return wide.index_add(1, tokens, values.to(wide).expand(len(wide), -1))

    def logprobs(self, logits: Tensor, tokens: Sequence[int]) -> list[TokenLogprobs]:
        """Of these tokens, by the model's logits (T, V) for them; none where it does not ask for them."""
        return [] if self.options.logprobs is None else token_logprobs(logits, tokens, self.options.logprobs)

    def max_draft_tokens(self, room: int | None) -> int:
        """How many tokens to draft for it at most, where its row can read so many in one call (None: any number)."""
        if self.options.changes_logits:  # by what it has written, of which a draft knows nothing
            return 0
        length = min(self.draft_length, self.remaining - 1)
        return max(0, length if room is None else min(length, room - 1))

    def adapt_draft_length(self, drafted: int, accepted: int) -> None:
        """Double the draft length if all tokens of a full draft were accepted; after a rejection, take accepted + 1."""
        if accepted < drafted:
            self.draft_length = accepted + 1
        elif drafted == self.draft_length:
            self.draft_length = min(2 * self.draft_length, MAX_DRAFT_LENGTH)


def new_requests(
    first: int,
    prompts: Sequence[Sequence[int]],
    config: SamplingConfig,
    end: int | None = None,
    options: TextOptions = PLAIN,
) -> list[GenerationRequest]:
    """One new request per prompt, named `first`, `first` + 1, ..."""
    seed = secrets.randbits(63) if config.seed is None else config.seed
    seeds = row_seeds(seed, prompts)
    pairs = enumerate(zip(prompts, seeds, strict=True), start=first)
    return [
        GenerationRequest(name, prompt, config, seed=own, end=end, options=options) for name, (prompt, own) in pairs
    ]


def present_in(requests: Sequence[GenerationRequest], vocab_size: int) -> Tensor:
    """Whether each token is in each text, (B, V), 1 or 0; all 0 for a text without a repetition penalty."""
    present = torch.zeros(len(requests), vocab_size, dtype=torch.uint8, device="cpu")
    for row, request in enumerate(requests):
        present[row, list(request.present)] = 1
    return present


Compute = Callable[
    [Sequence[GenerationRequest], Tensor, Tensor], Tensor
]  # requests of one config, logits, draft tokens


def sample_ahead(requests: Sequence[GenerationRequest], logits: Tensor, draft_tokens: Tensor) -> Tensor:
    """Sample a token at each of the last T positions, assuming the draft tokens are right: (B, T).

    Each position has its own random number, so that a text does not depend on its drafts.

    Args:
        requests: B requests.
        logits: (B, T, V), the last ones for the token after all draft tokens.
        draft_tokens: (B, G) draft tokens of each text; G >= T - 1.
    """
    return _by_config(_sample, requests, logits, draft_tokens)


def probs_ahead(requests: Sequence[GenerationRequest], logits: Tensor, draft_tokens: Tensor) -> Tensor:
    """The probabilities (B, T, V) that `sample_ahead` samples from."""
    return _by_config(_probs, requests, logits, draft_tokens)


def sample_from(
    requests: Sequence[GenerationRequest], probs: Tensor, ahead: Sequence[int], purposes: Sequence[Purpose]
) -> Tensor:
    """Sample a token (B,) for each text, `ahead` tokens after its last, from weights (B, V) that need not sum to 1."""
    numbers = [request.uniforms(offset, 1, why) for request, offset, why in zip(requests, ahead, purposes, strict=True)]
    return draw(probs.log(), torch.tensor(numbers, device=probs.device).flatten())


def _by_config(compute: Compute, requests: Sequence[GenerationRequest], logits: Tensor, draft_tokens: Tensor) -> Tensor:
    """Apply `compute` once per sampling config; usually there is one."""
    refuse_not_finite(logits)
    if any(request.options.changes_logits for request in requests):
        logits = torch.stack([request.adjusted(own) for request, own in zip(requests, logits, strict=True)])
    groups: dict[int, list[int]] = {}
    for row, request in enumerate(requests):
        groups.setdefault(id(request.config), []).append(row)
    if len(groups) == 1:
        return compute(requests, logits, draft_tokens)
    parts = [compute([requests[row] for row in some], logits[some], draft_tokens[some]) for some in groups.values()]
    order = torch.tensor(list(chain(*groups.values())), device=logits.device)
    return torch.cat(parts)[order.argsort()]


def _sample(requests: Sequence[GenerationRequest], logits: Tensor, draft_tokens: Tensor) -> Tensor:
    config, present = requests[0].config, _present(requests, logits, draft_tokens)
    uniforms = None if config.greedy else _uniforms(requests, draft_tokens.shape[1] + 1, logits)
    tokens = sample(logits.flatten(0, 1), config, uniforms, present)  # (B, T, V) -> (B * T, V) -> (B * T,)
    return tokens.view(logits.shape[:2])


def _probs(requests: Sequence[GenerationRequest], logits: Tensor, draft_tokens: Tensor) -> Tensor:
    rows = logits.flatten(0, 1)  # (B, T, V) -> (B * T, V)
    probs = filter_logits(rows, requests[0].config, _present(requests, logits, draft_tokens)).softmax(
        -1
    )  # at least float32
    return probs.view(logits.shape)


def _uniforms(requests: Sequence[GenerationRequest], end: int, logits: Tensor) -> Tensor:
    """The random numbers (B * T,) of the T positions before `end`."""
    T = logits.shape[1]
    numbers = [request.uniforms(end - T, T) for request in requests]
    return torch.tensor(numbers, device=logits.device).flatten()  # (B, T) -> (B * T,)


def _present(requests: Sequence[GenerationRequest], logits: Tensor, draft_tokens: Tensor) -> Tensor | None:
    """Whether each token occurs before each position if the drafts are right, (B * T, V); None without a penalty."""
    if requests[0].config.repetition_penalty == 1:
        return None
    (B, T, V), G = logits.shape, draft_tokens.shape[1]
    present = torch.zeros(B, G + 1, V, dtype=torch.int32, device=draft_tokens.device)
    present[:, 0] = present_in(requests, V).to(draft_tokens.device)
    present[:, 1:].scatter_(2, draft_tokens[:, :, None], 1)
    return (present.cumsum(1) > 0)[:, G + 1 - T :].flatten(0, 1)  # (B, T, V) -> (B * T, V)
