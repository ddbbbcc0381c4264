"""From vectors to the logits of tokens."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.parts.feedforward import Activation


class LMHead(nn.Module):
    """The head: logits are products with a matrix (V, D) of its own, or with the embedding's (Press & Wolf 2017)."""

    def __init__(
        self,
        d_model: int,
        vocab_size: int,
        *,
        tied: bool = False,
        bias: bool = False,
        scaled: bool = False,
        transform: nn.Module | None = None,
    ) -> None:
        """
        Args:
            d_model, vocab_size: D and V.
            tied: use the embedding's matrix.
            bias: add a bias to the logits.
            scaled: divide the hidden states by sqrt(D) (Raffel et al. 2020, arXiv 1910.10683, in T5's code).
            transform: applied to the hidden states first, (..., D) -> (..., D).
        """
        super().__init__()
        self.transform = transform if transform is not None else nn.Identity()
        self.weight = None if tied else nn.Parameter(torch.zeros(vocab_size, d_model))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None
        self.scale = d_model**-0.5 if scaled else 1.0

    def forward(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        """Logits (..., V) from hidden states (..., D) and the embedding's matrix (V, D)."""
        hidden = self.transform(hidden)
        hidden = hidden if self.scale == 1 else hidden * self.scale
        return F.linear(hidden, embedding if self.weight is None else self.weight, self.bias)


class Transform(nn.Module):
    """norm(activation(dense(x))), before the head (Devlin et al. 2019, arXiv 1810.04805, in BERT's code)."""

    def __init__(self, d_model: int, activation: Activation, norm: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)
        self.activation = activation
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return self.norm(self.activation(self.dense(x)))  # type: ignore[no-any-return]
