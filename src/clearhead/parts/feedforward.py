"""The position-wise feed-forward: widen, bend, narrow. Every kind ends in `down`, which feeds the residual stream."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.parts.dropout import make_dropout

Activation = Callable[[Tensor], Tensor]


class FeedForward(nn.Module):
    """down(activation(up(x))) (Vaswani et al. 2017, equation 2)."""

    def __init__(
        self, activation: Activation, d_model: int, d_ff: int, *, bias: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.activation = activation
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.dropout = make_dropout(dropout)
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        hidden: Tensor = self.dropout(self.activation(self.up(x)))  # (B, T, d_ff)
        return self.down(hidden)  # type: ignore[no-any-return]


class GatedFeedForward(FeedForward):
    """down(activation(gate(x)) * up(x)) (Shazeer 2020, arXiv 2002.05202, equation 6)."""

    def __init__(
        self, activation: Activation, d_model: int, d_ff: int, *, bias: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(activation, d_model, d_ff, bias=bias, dropout=dropout)
        self.gate = nn.Linear(d_model, d_ff, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        hidden: Tensor = self.dropout(self.activation(self.gate(x)) * self.up(x))  # (B, T, d_ff)
        return self.down(hidden)  # type: ignore[no-any-return]


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)^2 (So et al. 2021, Primer, arXiv 2109.08668)."""
    return F.relu(x).square()


def gelu_tanh(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016, arXiv 1606.08415, section 2)."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,  # Ramachandran et al. 2017, arXiv 1710.05941: swish, with beta 1
    "relu2": relu_squared,
    "swiglu": F.silu,
    "geglu": gelu_tanh,
}
FEEDFORWARDS: dict[str, Callable[..., FeedForward]] = {
    **{name: partial(FeedForward, ACTIVATIONS[name]) for name in ("relu", "gelu", "gelu_tanh", "silu", "relu2")},
    **{name: partial(GatedFeedForward, ACTIVATIONS[name]) for name in ("swiglu", "geglu")},
}
