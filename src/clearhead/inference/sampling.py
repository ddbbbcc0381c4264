"""From logits to a token: pure functions on logits (B, V), in the order in which `sample` applies them.

repetition penalty -> temperature -> top-k -> top-p -> min-p -> draw. A removed token has the logit -inf; no function
ever removes a row's likeliest token, so there is always something to draw.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.config import SamplingConfig

DRAWN_AHEAD = 256  # random numbers per block; fixed, so that a longer text begins like a shorter one
ROUNDING = 1e-6  # tolerance for float32 probabilities that would be exact on paper


def penalize_repetition(logits: Tensor, present: Tensor, penalty: float) -> Tensor:
    """Divide the positive logits of the tokens in `present` (B, V) by the penalty, and multiply the negative ones.

    `present` is True where a token is in the row's text already. As in transformers; Keskar et al. 2019
    (arXiv 1909.05858) divide all.
    """
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(present.bool(), penalized, logits)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Exactly the k likeliest tokens; of equally likely ones, those with the lowest ids."""
    least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]  # (B, 1)
    above, tied = logits > least, logits == least
    room = k - above.sum(-1, keepdim=True)  # (B, 1)
    return logits.masked_fill(~(above | (tied & (tied.cumsum(-1) <= room))), -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """The fewest likeliest tokens that hold probability p together (Holtzman et al. 2019, arXiv 1904.09751)."""
    probabilities, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = probabilities.cumsum(-1) - probabilities  # what the likelier tokens hold
    removed = before >= p - ROUNDING
    removed[:, 0] = False
    return logits.masked_fill(torch.empty_like(removed).scatter_(-1, order, removed), -torch.inf)


def keep_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Tokens at least `min_p` times as likely as the likeliest (Nguyen et al. 2024, arXiv 2407.01082)."""
    gap = math.log(min_p) - ROUNDING if min_p else -math.inf
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + gap, -torch.inf)


def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Sample a token (B,): the first at which the cumulative probability passes the row's number from [0, 1)."""
    probabilities = logits.softmax(-1)
    reached = probabilities.cumsum(-1).where(probabilities > 0, 0.0)  # a removed token reaches nothing
    threshold = uniforms[:, None].to(reached.dtype) * reached.amax(-1, keepdim=True)
    return (reached > threshold).byte().argmax(-1)  # the first that does


def sample(logits: Tensor, config: SamplingConfig, uniforms: Tensor | None, present: Tensor | None = None) -> Tensor:
    """The next token of every row, (B, V) -> (B,).

    Args:
        logits: as the model gave them.
        config: which of the steps to take.
        uniforms: (B,) numbers from [0, 1), one per row; not needed when greedy.
        present: (B, V) tokens that are in the row's text already; only for the repetition penalty.
    """
    if config.greedy:
        return _penalize(logits, config, present).argmax(-1)  # the first of equals
    assert uniforms is not None, "drawing needs random numbers"
    return draw(filter_logits(logits, config, present), uniforms)


def filter_logits(logits: Tensor, config: SamplingConfig, present: Tensor | None = None) -> Tensor:
    """The filtered logits (B, V) that `sample` draws from; if greedy, only the likeliest token remains."""
    logits = _penalize(logits, config, present)
    if config.greedy:
        return keep_top_k(logits, 1)
    logits = logits / config.temperature
    if config.top_k is not None and config.top_k < logits.shape[-1]:
        logits = keep_top_k(logits, config.top_k)
    if config.top_p is not None and config.top_p < 1:
        logits = keep_top_p(logits, config.top_p)
    if config.min_p:
        logits = keep_min_p(logits, config.min_p)
    return logits


def _penalize(logits: Tensor, config: SamplingConfig, present: Tensor | None) -> Tensor:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if present is None or config.repetition_penalty == 1:
        return logits
    return penalize_repetition(logits, present, config.repetition_penalty)


def row_seeds(seed: int, prompts: Sequence[Sequence[int]]) -> list[int]:
    """A seed per row, from the prompt and its number among equal ones, not from the row's index."""
    seeds, copies = [], dict[tuple[int, ...], int]()
    for prompt in map(tuple, prompts):
        copy = copies[prompt] = copies.get(prompt, -1) + 1
        digest = hashlib.blake2b(repr((seed, copy, [int(i) for i in prompt])).encode(), digest_size=8).digest()
        seeds.append(int.from_bytes(digest, "little") >> 1)  # 63 bits
    return seeds
