"""How a token knows where it stands. Three seams: add to the embedding, rotate queries and keys, bias the scores."""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from clearhead.parts.masks import Positions, as_tensor

Rotate = Callable[[Tensor], Tensor]  # (B, H, T, K) -> (B, H, T, K)


class PositionKind(nn.Module):
    """The three seams, each doing nothing: a kind of positions fills in its own."""

    bounded = False  # whether positions at or beyond block_size are impossible

    def __init__(self, d_model: int, n_heads: int, block_size: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.block_size = block_size

    def add(self, x: Tensor, positions: Positions) -> Tensor:
        """(B, T, D) -> (B, T, D): embeddings that know their place."""
        return x

    def rotate(self, positions: Positions, device: torch.device) -> Rotate | None:
        """What turns queries and keys (B, H, T, K) at these positions, or None."""
        return None

    def bias(self, query: Positions, key: Positions, device: torch.device) -> Tensor | None:
        """What is added to the scores, (H, T_q, T_k) or (B, H, T_q, T_k), or None."""
        return None


class NoPositions(PositionKind):
    """No positions at all.

    A causal decoder can still count: it sees how many keys there are (Haviv et al. 2022, arXiv 2203.16634).
    """


class LearnedPositions(PositionKind):
    """One learned vector for each of the block_size places (Radford et al. 2018)."""

    bounded = True

    def __init__(self, d_model: int, n_heads: int, block_size: int, base: float = 10_000.0) -> None:
        super().__init__(d_model, n_heads, block_size)
        self.weight = nn.Parameter(torch.empty(block_size, d_model))

    def add(self, x: Tensor, positions: Positions) -> Tensor:
        return x + _look_up(self.weight, positions)


class FixedPositions(PositionKind):
    """A kind made of fixed numbers: worked out in float64, and rounded to the model's type whenever that changes."""

    def __init__(self, d_model: int, n_heads: int, block_size: int, base: float = 10_000.0) -> None:
        super().__init__(d_model, n_heads, block_size)
        self.d_model, self.n_heads, self.base = d_model, n_heads, base
        self.register_buffer("numbers", self.compute().to(_precise(torch.get_default_dtype())), persistent=False)
        self.numbers: Tensor

    def compute(self) -> Tensor:
        """The numbers in float64."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.numbers = self.compute().to(_precise(self.numbers.dtype)).to(self.numbers.device)
        return self


class SinusoidalPositions(FixedPositions):
    """Fixed waves, even columns sine and odd columns cosine (Vaswani et al. 2017, section 3.5)."""

    bounded = True

    def compute(self) -> Tensor:
        return sinusoids(self.block_size, self.d_model, self.base, torch.float64)

    def add(self, x: Tensor, positions: Positions) -> Tensor:
        return x + _look_up(self.numbers, positions).to(x.dtype)


class RotaryPositions(FixedPositions):
    """Queries and keys turned by an angle that grows with position, so a score depends on distance only.

    Su et al. 2021, arXiv 2104.09864. Pairs are (i, i + K/2), the layout of Hugging Face; angles are float32, as
    there, or float64 where the model is.
    """

    def compute(self) -> Tensor:
        return _frequencies(self.d_model // self.n_heads, self.base)

    def rotate(self, positions: Positions, device: torch.device) -> Rotate:
        angles = as_tensor(positions, device).unsqueeze(-1) * self.numbers
        if angles.dim() == 3:
            angles = angles.unsqueeze(1)  # (B, T, K/2) -> (B, 1, T, K/2): the same for every head
        cos, sin = angles.cos(), angles.sin()

        def turn(x: Tensor) -> Tensor:
            first, second = x.chunk(2, dim=-1)  # (B, H, T, K/2) each
            c, s = cos.to(x.dtype), sin.to(x.dtype)
            return torch.cat((first * c - second * s, second * c + first * s), dim=-1)

        return turn


class AlibiPositions(FixedPositions):
    """Scores lose a head's slope for each token of distance (Press et al. 2021, arXiv 2108.12409)."""

    def compute(self) -> Tensor:
        return alibi_slopes(self.n_heads)

    def bias(self, query: Positions, key: Positions, device: torch.device) -> Tensor:
        rows = as_tensor(query, device).unsqueeze(-1)  # (T_q, 1) or (B, T_q, 1)
        columns = as_tensor(key, device).unsqueeze(-2)  # (1, T_k) or (B, 1, T_k)
        distance = (rows - columns).abs().unsqueeze(-3)  # (1, T_q, T_k) or (B, 1, T_q, T_k)
        return -self.numbers[:, None, None] * distance


POSITIONS: dict[str, type[PositionKind]] = {
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "rope": RotaryPositions,
    "alibi": AlibiPositions,
    "none": NoPositions,
}


def _look_up(table: Tensor, positions: Positions) -> Tensor:
    if isinstance(positions, range):
        return table[positions.start : positions.stop]  # (T, D)
    return table[positions.clamp(min=0)]  # (B, T, D); padding borrows the first row, nobody attends to it


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _frequencies(width: int, base: float) -> Tensor:
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)  # (width/2,)


def sinusoids(block_size: int, d_model: int, base: float = 10_000.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """(block_size, d_model): column 2i is sin(t / base^(2i/D)), column 2i+1 the cosine of the same angle."""
    angles = torch.arange(block_size).unsqueeze(-1) * _frequencies(d_model, base)  # (T, D/2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)  # (T, D/2, 2) -> (T, D)


def alibi_slopes(n_heads: int) -> Tensor:
    """(H,): a geometric series from 2^(-8/H); for other head counts, filled up from the next power of two's series."""
    power = 2 ** math.floor(math.log2(n_heads))
    series = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    extra = [2 ** (-4 * (2 * i + 1) / power) for i in range(n_heads - power)]
    return torch.tensor(series + extra, dtype=torch.float64)
