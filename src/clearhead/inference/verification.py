"""Accept or reject draft tokens, so that the text keeps the model's own distribution."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.inference.requests import GenerationRequest, Purpose
from clearhead.inference.sampling_ahead import probs_ahead, sample_ahead, sample_from


class DraftTokens(NamedTuple):
    """Draft tokens of each row; rows may differ in length.

    If they were sampled, `probs` (B, G, V) are the draft's probabilities.
    """

    tokens: list[list[int]]
    probs: Tensor | None = None

    def select(self, rows: Sequence[int]) -> "DraftTokens":
        """Those of some rows."""
        if len(rows) == len(self.tokens):
            return self
        return DraftTokens([self.tokens[row] for row in rows], None if self.probs is None else self.probs[[*rows]])


def verify(requests: Sequence[GenerationRequest], logits: Tensor, draft: DraftTokens) -> list[list[int]]:
    """The next tokens of each text: the accepted draft tokens, and one more.

    Deterministic draft tokens are accepted if the model samples the same, so they change no token. Sampled ones are
    accepted with probability min(1, p / q), p being the model's probability and q the draft's; the first rejected one
    is replaced by a sample from max(0, p - q). Tokens then have the model's own distribution
    (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1).

    Args:
        requests: B requests.
        logits: (B, G + 1, V) of the model, after the last token and after each draft token.
        draft: at most G draft tokens per row.
    """
    G = logits.shape[1] - 1
    rows = [row + [0] * (G - len(row)) for row in draft.tokens]
    padded = torch.tensor(rows, dtype=torch.int64, device=logits.device)  # (B, G)
    if draft.probs is None:
        sampled = sample_ahead(requests, logits, padded).tolist()
        return [own[: matching_prefix(drafted, own) + 1] for drafted, own in zip(draft.tokens, sampled, strict=True)]
    model_probs, draft_probs = probs_ahead(requests, logits, padded), draft.probs[:, :G]  # (B, G + 1, V), (B, G, V)
    n_accepted = _count_accepted(requests, model_probs, draft_probs, padded, [len(row) for row in draft.tokens])
    rejected = [count < len(drafted) for count, drafted in zip(n_accepted, draft.tokens, strict=True)]
    counts, any_rejected = (torch.tensor(part, device=logits.device) for part in (n_accepted, rejected))
    residual = _residual_probs(model_probs, draft_probs, counts, any_rejected)
    purposes: list[Purpose] = ["resample" if row else "token" for row in draft.tokens]
    last = sample_from(requests, residual, n_accepted, purposes).tolist()
    return [[*drafted[:count], token] for drafted, count, token in zip(draft.tokens, n_accepted, last, strict=True)]


def matching_prefix(drafted: Sequence[int], tokens: Sequence[int]) -> int:
    """The number of draft tokens before the first that differs."""
    pairs = zip(drafted, tokens, strict=False)
    return next((index for index, (guess, token) in enumerate(pairs) if guess != token), min(len(drafted), len(tokens)))


def _count_accepted(
    requests: Sequence[GenerationRequest],
    model_probs: Tensor,
    draft_probs: Tensor,
    draft_tokens: Tensor,
    lengths: Sequence[int],
) -> list[int]:
    """The number of accepted draft tokens, of (B, G), before the first rejection in each text."""
    G = draft_tokens.shape[1]
    numbers = torch.tensor(
        [request.uniforms(0, G, "accept") for request in requests], device=model_probs.device
    )  # (B, G)
    p, q = (
        probs[:, :G].gather(2, draft_tokens[:, :, None])[:, :, 0] for probs in (model_probs, draft_probs)
    )  # (B, G, V) -> (B, G)
    accepted = (numbers * q < p).tolist()
    return [[*row[:length], False].index(False) for row, length in zip(accepted, lengths, strict=True)]


def _residual_probs(model_probs: Tensor, draft_probs: Tensor, counts: Tensor, rejected: Tensor) -> Tensor:
    """What each row's last token is sampled from, (B, V): p, or max(0, p - q) after a rejection."""
    rows = torch.arange(len(counts), device=model_probs.device)
    p = model_probs[rows, counts]  # (B, V)
    q = draft_probs[rows, counts.clamp(max=draft_probs.shape[1] - 1)] * rejected[:, None]  # (B, V)
    residual = (p - q).clamp(min=0)
    return residual.where(residual.sum(-1, keepdim=True) > 0, p)  # all zeros where p and q differ by rounding alone
