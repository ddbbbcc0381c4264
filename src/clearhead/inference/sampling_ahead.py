"""Tokens of several texts, each by its own sampling, at positions after tokens that are drafted for them."""

from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor

from clearhead.inference.requests import GenerationRequest, Purpose
from clearhead.inference.sampling import draw, filter_logits, sample
from clearhead.models.eval_mode import refuse_not_finite


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
        rows = zip(requests, logits, draft_tokens, strict=True)
        logits = torch.stack([request.adjusted(*row) for request, *row in rows])
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
