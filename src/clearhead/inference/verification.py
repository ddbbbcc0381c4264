"""Guesses at the next tokens, held against the model's own odds: what is written is what the model would write."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.inference.requests import Text, draw_ahead, draw_from, odds_ahead


class Guesses(NamedTuple):
    """The next tokens of each row, more for one than for another.

    Where chance chose them, `odds` (B, G, V) are the probabilities that it had.
    """

    tokens: list[list[int]]
    odds: Tensor | None = None


def check(texts: Sequence[Text], logits: Tensor, guesses: Guesses) -> list[list[int]]:
    """The tokens that follow in each text: the guesses that are believed, and one more.

    Certain guesses are believed if the model draws the same, so they change no token. Those that were drawn are
    believed with probability min(1, p / q), p being the model's probability and q that of the draft; the token in the
    place of the first that is not is drawn from max(0, p - q). Tokens then have the model's own probabilities
    (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1).

    Args:
        texts: B of them.
        logits: (B, G + 1, V), the model's, of the token before the guesses and of each guess.
        guesses: G is the most of a row.
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
    """How many guesses are right, up to the first that is not."""
    pairs = zip(guesses, tokens, strict=False)
    return next((index for index, (guess, token) in enumerate(pairs) if guess != token), min(len(guesses), len(tokens)))


def _believed(
    texts: Sequence[Text], model_odds: Tensor, draft_odds: Tensor, guesses: Tensor, lengths: Sequence[int]
) -> list[int]:
    """How many guesses (B, G) of each text are believed, up to the first that is not."""
    G = guesses.shape[1]
    numbers = torch.tensor([text.uniforms(0, G, "belief") for text in texts], device=model_odds.device)  # (B, G)
    p, q = (
        odds[:, :G].gather(2, guesses[:, :, None])[:, :, 0] for odds in (model_odds, draft_odds)
    )  # (B, G, V) -> (B, G)
    believed = (numbers * q < p).tolist()
    return [[*row[:length], False].index(False) for row, length in zip(believed, lengths, strict=True)]


def _left(model_odds: Tensor, draft_odds: Tensor, counts: Tensor, doubted: Tensor) -> Tensor:
    """What a row's token is drawn from at its place, (B, V): the model's odds, less the draft's where it is doubted."""
    rows = torch.arange(len(counts), device=model_odds.device)
    p = model_odds[rows, counts]  # (B, V)
    q = draft_odds[rows, counts.clamp(max=draft_odds.shape[1] - 1)] * doubted[:, None]  # (B, V)
    left = (p - q).clamp(min=0)
    return left.where(left.sum(-1, keepdim=True) > 0, p)  # nothing is left where p and q differ by rounding alone
