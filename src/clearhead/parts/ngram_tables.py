"""A memory beside the Transformer: learned vectors looked up by the last two, three, ... tokens.

Ids are shifted by one; 0 means no token (padding, another document, before the start).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.parts.cache import DecoderCache
from clearhead.parts.masks import Positions

PRIME = 2**31 - 1  # hashes are below this; a product of two of them fits into 64 bits
MULTIPLIER = 1_327_217_885  # PRIME / golden ratio: consecutive ids land far apart (Knuth, volume 3, section 6.4)


class NgramTables(nn.Embedding):
    """A vector for each bigram, and for each longer n-gram up to `longest`, all in one table; a token gets their sum.

    Each of the (V + 1)^n n-grams has its own row if `rows` suffice. Otherwise they share `rows` rows, by a hash that is
    a polynomial modulo a prime (Karp & Rabin 1987).
    """

    def __init__(self, vocab_size: int, d_model: int, longest: int, rows: int) -> None:
        """
        Args:
            vocab_size, d_model: V and D.
            longest: tokens of the longest n-gram, at least 2.
            rows: for the n-grams of each length, at most.
        """
        self.sizes = [min((vocab_size + 1) ** n, rows) for n in range(2, longest + 1)]
        super().__init__(sum(self.sizes), d_model)
        base = vocab_size + 1  # a number of n digits, or a hash
        self.factors = [base if size == base**n else MULTIPLIER for n, size in enumerate(self.sizes, start=2)]

    def reset_parameters(self) -> None:
        """Start at zero, so that a fresh model is the Transformer alone."""
        nn.init.zeros_(self.weight)

    def rows_of(self, tokens: Tensor) -> Tensor:
        """The table rows (B, T, longest - 1) for the tokens (B, T, N) of `last_tokens`, N >= longest."""
        rows, start = [], 0
        for n, (size, factor) in enumerate(zip(self.sizes, self.factors, strict=True), start=2):
            row = tokens[..., n - 1]  # the oldest one
            for column in range(n - 2, -1, -1):
                row = (row * factor + tokens[..., column]) % PRIME
            rows.append(row % size + start)
            start += size
        return torch.stack(rows, dim=-1)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, N) -> (B, T, D)."""
        rows = self.rows_of(tokens)
        x = F.embedding_bag(rows.flatten(0, 1), self.weight, mode="sum")  # (B * T, D)
        return x.view(*rows.shape[:2], -1)  # (B, T, D)


def last_tokens(
    ids: Tensor, n: int, positions: Positions, documents: Tensor | None = None, cache: DecoderCache | None = None
) -> Tensor:
    """Each token and the n - 1 before it in its row, the newest first: (B, T) -> (B, T, n), ids + 1 and 0 for none.

    Args:
        positions: of the tokens; -1 is padding, which is skipped.
        documents: (B, T) number of the document of each token; tokens of other documents become 0.
        cache: holds the tokens before these; the last ones are stored in it for the next call.
    """
    tokens = ids + 1 if isinstance(positions, range) else (ids + 1).where(positions >= 0, 0)
    before = tokens.new_zeros(ids.shape[0], n - 1) if cache is None else cache.tokens
    assert before is not None, "this cache was made for a model without tables of n-grams"
    assert before.shape[1] == n - 1, f"this cache was made for n-grams of {before.shape[1] + 1} tokens, not {n}"
    line = torch.cat((before, tokens), dim=1)  # (B, n - 1 + T)
    real = line > 0
    index = real.cumsum(dim=1)  # (B, n - 1 + T), counted from 1 in each row and without padding

    def look_up(values: Tensor, indices: Tensor) -> Tensor:
        """The values at these indices of each row, (B, n - 1 + T), (B, ...) -> (B, ...); 0 before the first one."""
        packed = values.new_zeros(ids.shape[0], line.shape[1] + 1).scatter(1, index * real, values * real)
        return packed.gather(1, indices.clamp(min=0).flatten(1)).view_as(indices)

    own = index[:, n - 1 :, None] - torch.arange(n, device=ids.device)  # (B, T, n)
    ngrams = look_up(line, own)
    if documents is not None:
        numbers = look_up(F.pad(documents, (n - 1, 0)), own)  # (B, T, n)
        ngrams = ngrams.where(numbers == documents[:, :, None], 0)
    if cache is not None:
        cache.tokens = look_up(line, index[:, -1:] - torch.arange(n - 2, -1, -1, device=ids.device))  # (B, n - 1)
    return ngrams
