"""Residual, norm and dropout, once for every part that writes to the residual stream."""

from typing import Literal

from torch import Tensor, nn

from clearhead.parts.dropout import make_dropout

NormPosition = Literal["pre", "post"]


class Sublayer(nn.Module):
    """pre: x + dropout(part(norm(x))); post: norm(x + dropout(part(x))) (Xiong et al. 2020, arXiv 2002.04745)."""

    def __init__(
        self, part: nn.Module, norm: nn.Module, *, norm_position: NormPosition = "pre", dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.norm = norm
        self.part = part
        self.dropout = make_dropout(dropout)
        self.norm_position = norm_position

    def forward(self, x: Tensor, *args: object, **options: object) -> Tensor:
        """(B, T, D) -> (B, T, D); what follows `x` goes to the part as it is."""
        if self.norm_position == "pre":
            return x + self.branch(x, *args, **options)
        return self.norm(x + self.dropout(self.part(x, *args, **options)))  # type: ignore[no-any-return]

    def branch(self, x: Tensor, *args: object, **options: object) -> Tensor:
        """What a pre-norm sublayer adds to `x`: dropout(part(norm(x))), (B, T, D) -> (B, T, D)."""
        return self.dropout(self.part(self.norm(x), *args, **options))  # type: ignore[no-any-return]
