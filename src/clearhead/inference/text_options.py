"""What a text may ask for beside its sampling, and what is reported of its tokens."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.errors import UsageError
from clearhead.inference.constraints import Constraint


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
        constraint: the form that the text is held to; its tokens are drawn from those that continue it. It ends where
            it may and the model ends it, or where nothing can follow.

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
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        for name, number in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if number is not None and number < 0:
                raise UsageError(f"`{name}` must be at least 0, not {number}")
        numbers = (*self.logit_bias.values(), self.presence_penalty, self.frequency_penalty)
        if not all(map(math.isfinite, numbers)):
            raise UsageError("`logit_bias`, `presence_penalty` and `frequency_penalty` must be finite numbers")

    @property
    def adds_to_logits(self) -> bool:
        """Whether something is added to the model's logits."""
        return bool(self.logit_bias or self.presence_penalty or self.frequency_penalty)

    @property
    def changes_logits(self) -> bool:
        """Whether tokens are sampled from other logits than the model's."""
        return self.adds_to_logits or self.constraint is not None


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
