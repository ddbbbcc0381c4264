"""Accept or reject draft tokens, so that the text keeps the model's own distribution."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.inference.requests import Text, draw_ahead, draw_from, odds_ahead


class DraftTokens(NamedTuple):
    """Draft tokens of each row; rows may differ in length.

    If they were sampled, `odds` (B, G, V) are the draft's probabilities.
    """

    tokens: list[list[int]]
    odds: Tensor | None = None


def verify(texts: Sequence[Text], logits: Tensor, guesses: DraftTokens) -> list[list[int]]:
    """The next tokens of each text: the accepted draft tokens, and one more.

    Deterministic draft tokens are accepted if the model samples the same, so they change no token. Sampled ones are
    accepted with probability min(1, p / q), p being the model's probability and q the draft's; the first rejected one
    is replaced by a sample from max(0, p - q). Tokens then have the model's own distribution
    (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1).

    Args:
        texts: B texts.
        logits: (B, G + 1, V) of the model, after the last token and after each draft token.
        guesses: at most G draft tokens per row.
    """
    G = logits.shape[1] - 1
    rows = [guess + [0] * (G - len(guess)) for guess in guesses.tokens]
    padded = torch.tensor(rows, dtype=torch.int64, device=logits.device)  # (B, G)
    if guesses.odds is None:
        drawn = draw_ahead(texts, logits, padded).tolist()
        return [own[: agreed(guess, own) + 1] for guess, own in zip(guesses.tokens, drawn, strict=True)]
    model_odds, draft_odds = odds_ahead(texts, logits, padded), guesses.odds[:, :G]  # (B, G + 1, V), (B, G, V)
    right = _believed(texts, model_odds, draft_odds, padded, [len(guess) for guess in guesses.tokens])
    doubted = [count < len(guess) for count, guess in zip(right, guesses.tokens, strict=True)]
    left = _left(model_odds, draft_odds, *(torch.tensor(part, device=logits.device) for part in (right, doubted)))
    last = draw_from(texts, left, right, ["instead" if guess else "token" for guess in guesses.tokens]).tolist()
    return [[*guess[:count], token] for guess, count, token in zip(guesses.tokens, right, last, strict=True)]


def agreed(guesses: Sequence[int], tokens: Sequence[int]) -> int:
    """The number of draft tokens before the first that differs."""
    pairs = zip(guesses, tokens, strict=False)
    return next((index for index, (guess, token) in enumerate(pairs) if guess != token), min(len(guesses), len(tokens)))


def _believed(
    texts: Sequence[Text], model_odds: Tensor, draft_odds: Tensor, guesses: Tensor, lengths: Sequence[int]
) -> list[int]:
    """The number of accepted draft tokens, of (B, G), before the first rejection in each text."""
    G = guesses.shape[1]
    numbers = torch.tensor([text.uniforms(0, G, "belief") for text in texts], device=model_odds.device)  # (B, G)
    p, q = (
        odds[:, :G].gather(2, guesses[:, :, None])[:, :, 0] for odds in (model_odds, draft_odds)
    )  # (B, G, V) -> (B, G)
    believed = (numbers * q < p).tolist()
    return [[*row[:length], False].index(False) for row, length in zip(believed, lengths, strict=True)]


def _left(model_odds: Tensor, draft_odds: Tensor, counts: Tensor, doubted: Tensor) -> Tensor:
    """What each row's last token is sampled from, (B, V): p, or max(0, p - q) after a rejection."""
    rows = torch.arange(len(counts), device=model_odds.device)
    p = model_odds[rows, counts]  # (B, V)
    q = draft_odds[rows, counts.clamp(max=draft_odds.shape[1] - 1)] * doubted[:, None]  # (B, V)
    left = (p - q).clamp(min=0)
    return left.where(left.sum(-1, keepdim=True) > 0, p)  # all zeros where p and q differ by rounding alone
