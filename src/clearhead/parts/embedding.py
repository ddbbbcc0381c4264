"""From ids to vectors."""

import math

from torch import Tensor, nn


class Embedding(nn.Embedding):
    """One learned vector for each token, times sqrt(D) where asked (Vaswani et al. 2017, section 3.4).

    A table shared with the head wants small numbers, the residual stream wants numbers near 1: the factor serves both.
    """

    def __init__(self, vocab_size: int, d_model: int, *, scaled: bool = False) -> None:
        super().__init__(vocab_size, d_model)
        self.scale = math.sqrt(d_model) if scaled else 1.0

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, D)."""
        x = super().forward(ids)
        return x if self.scale == 1 else x * self.scale
