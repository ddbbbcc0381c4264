"""The state of each request: its sampling, its draft length, and when its text ends."""

import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from clearhead.config import SamplingConfig
from clearhead.inference.sampling import DRAWN_AHEAD, row_seeds
from clearhead.inference.text_options import PLAIN, OnLogits, TextOptions, TokenLogprobs, token_logprobs
from clearhead.models.eval_mode import refuse_not_finite

# What a random number is for: a token, accepting a draft token, and the token in place of a rejected one.
Purpose = Literal["token", "accept", "resample"]
PURPOSES = get_args(Purpose)
FinishReason = Literal["stop", "length", "cancelled", "error"]
FIRST_DRAFT_LENGTH, MAX_DRAFT_LENGTH = 4, 16


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
        self._constraint = None if options.constraint is None else options.constraint.begin(prompt)
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
        """Append tokens; return those before eos or the length limit. At either, `remaining` becomes 0.

        Raises:
            ConstraintError: the text cannot be continued in its form.
        """
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
        if self._constraint is not None:
            count = 0
            while count < len(written) and not self._constraint.is_finished:
                self._constraint.accept(written[count])
                count += 1
            if self._constraint.is_finished:
                written, self.remaining, self.finish_reason = written[:count], 0, "stop"
            elif end is not None:
                self._constraint.end()
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

    def adjusted(self, logits: Tensor, draft_tokens: Tensor) -> Tensor:
        """Logits (T, V), at least float32, with its bias and its penalties, and -inf where a token may not stand.

        Args:
            logits: the last of them for the token after all draft tokens.
            draft_tokens: (G,), G >= T - 1.
        """
        options = self.options
        changes = dict(options.logit_bias)
        for token, count in self._written.items():
            penalty = options.presence_penalty + options.frequency_penalty * count
            changes[token] = changes.get(token, 0.0) - penalty
        tokens = torch.tensor([*changes], dtype=torch.int64, device=logits.device)
        values = torch.tensor([*changes.values()], device=logits.device)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        wide = wide.index_add(1, tokens, values.to(wide).expand(len(wide), -1))
        if self._constraint is None:
            return wide
        allowed = self._constraint.masks(draft_tokens.tolist(), len(wide), self.ends)  # (T, V)
        return wide.masked_fill(~allowed.to(wide.device), -torch.inf)

    def logprobs(self, logits: Tensor, tokens: Sequence[int]) -> list[TokenLogprobs]:
        """Of these tokens, by the model's logits (T, V) for them; none where it does not ask for them."""
        return [] if self.options.logprobs is None else token_logprobs(logits, tokens, self.options.logprobs)

    def max_draft_tokens(self, room: int | None) -> int:
        """How many tokens to draft for it at most, where its row can read so many in one call (None: any number)."""
        if self.options.adds_to_logits:  # by what it has written, of which a draft knows nothing
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
