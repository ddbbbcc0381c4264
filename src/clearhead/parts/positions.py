"""Position encodings, at three seams: add to the embedding, rotate queries and keys, bias the scores."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from clearhead.errors import InputError
from clearhead.parts.masks import Positions, as_tensor

Rotate = Callable[[Tensor], Tensor]  # (B, H, T, K) -> (B, H, T, K)


@dataclass(frozen=True)
class PositionOptions:
    """The options of all kinds of positions; each kind reads those it needs.

    Args:
        d_model: width of the residual stream.
        n_heads: heads whose scores are biased.
        block_size: the number of positions, where they are bounded.
        rotary_width: how many of a head's dimensions, the first ones, are rotated.
        rope_theta: the base of rotary and sinusoidal wavelengths.
        relative_buckets, relative_max_distance: relative positions: how many buckets, and where the last one begins.
        causal: whether the mask is causal, so that no bucket is needed for keys ahead.
    """

    d_model: int
    n_heads: int
    block_size: int
    rotary_width: int
    rope_theta: float = 10_000.0
    relative_buckets: int = 32
    relative_max_distance: int = 128
    causal: bool = True


class PositionEncoding(nn.Module):
    """The three seams, each doing nothing: a kind of positions fills in its own."""

    bounded = False  # whether positions at or beyond block_size are impossible

    def __init__(self, options: PositionOptions) -> None:
        super().__init__()

    def add(self, x: Tensor, positions: Positions) -> Tensor:
        """Add position vectors to embeddings, (B, T, D) -> (B, T, D)."""
        return x

    def rotate(self, positions: Positions, device: torch.device) -> Rotate | None:
        """A function that rotates queries and keys (B, H, T, K) at these positions, or None."""
        return None

    def bias(self, query: Positions, key: Positions, device: torch.device) -> Tensor | None:
        """The bias that is added to the scores, (H, T_q, T_k) or (B, H, T_q, T_k), or None."""
        return None


class NoPositions(PositionEncoding):
    """No positions at all.

    A causal decoder can still count: it sees how many keys there are (Haviv et al. 2022, arXiv 2203.16634).
    """


class LearnedPositions(PositionEncoding):
    """One learned vector for each of the block_size places (Radford et al. 2018)."""

    bounded = True

    def __init__(self, options: PositionOptions) -> None:
        super().__init__(options)
        self.weight = nn.Parameter(torch.zeros(options.block_size, options.d_model))

    def add(self, x: Tensor, positions: Positions) -> Tensor:
        return x + _look_up(self.weight, positions)


class FixedPositions(PositionEncoding):
    """Positions without parameters. Computed in float64, stored as float32 (float64 for a float64 model).

    They are recomputed whenever the model changes its type, because rounding cannot be undone.
    """

    def __init__(self, options: PositionOptions) -> None:
        super().__init__(options)
        self.options = options
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
        return sinusoids(self.options.block_size, self.options.d_model, self.options.rope_theta)

    def add(self, x: Tensor, positions: Positions) -> Tensor:
        return x + _look_up(self.numbers, positions).to(x.dtype)


@dataclass(frozen=True)
class RotaryEmbedding:
    """Turns the pairs (i, i + R/2) of the first R numbers of a head, all in two multiplications.

    Args:
        cos, sin: of the angle of each number (T, R), or (B, 1, T, R) where rows stand at different positions; the sines
            of the first half are negative.
    """

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (B, H, T, K)."""
        width = self.cos.shape[-1]
        turned, rest = x[..., :width], x[..., width:]  # R and K - R wide
        others = turned.roll(width // 2, dims=-1)  # for each number the other one of its pair
        turned = torch.addcmul(turned * self.cos.to(x.dtype), others, self.sin.to(x.dtype))
        return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


class RotaryPositions(FixedPositions):
    """Queries and keys turned by an angle that grows with position, so a score depends on distance only.

    Su et al. 2021, arXiv 2104.09864. Pairs are (i, i + R/2), the layout of Hugging Face, among the first R numbers of a
    head; what is behind them stays (Black et al. 2022, arXiv 2204.06745, section 2.1.1). Angles are float32, as there,
    also where the model is narrower.
    """

    def compute(self) -> Tensor:
        return _frequencies(self.options.rotary_width, self.options.rope_theta)

    def rotate(self, positions: Positions, device: torch.device) -> RotaryEmbedding:
        angles = as_tensor(positions, device).unsqueeze(-1) * self.numbers  # (..., T, R/2)
        if angles.dim() == 3:
            angles = angles.unsqueeze(1)  # (B, T, R/2) -> (B, 1, T, R/2): the same for every head
        cos = torch.cat((angles.cos(), angles.cos()), dim=-1)  # (..., T, R)
        return RotaryEmbedding(cos, torch.cat((-angles.sin(), angles.sin()), dim=-1))


class AlibiPositions(FixedPositions):
    """Scores lose a head's slope for each token of distance (Press et al. 2021, arXiv 2108.12409)."""

    def compute(self) -> Tensor:
        return alibi_slopes(self.options.n_heads)

    def bias(self, query: Positions, key: Positions, device: torch.device) -> Tensor:
        rows = as_tensor(query, device).unsqueeze(-1)  # (T_q, 1) or (B, T_q, 1)
        columns = as_tensor(key, device).unsqueeze(-2)  # (1, T_k) or (B, 1, T_k)
        distance = (rows - columns).abs().unsqueeze(-3)  # (1, T_q, T_k) or (B, 1, T_q, T_k)
        return -self.numbers[:, None, None] * distance


class RelativePositions(PositionEncoding):
    """A learned bias for each head and class of distance (Raffel et al. 2020, arXiv 1910.10683, section 2.1)."""

    def __init__(self, options: PositionOptions) -> None:
        super().__init__(options)
        self.weight = nn.Parameter(torch.zeros(options.relative_buckets, options.n_heads))
        self.max_distance, self.causal = options.relative_max_distance, options.causal

    def bias(self, query: Positions, key: Positions, device: torch.device) -> Tensor:
        rows = as_tensor(query, device).unsqueeze(-1)  # (T_q, 1) or (B, T_q, 1)
        columns = as_tensor(key, device).unsqueeze(-2)  # (1, T_k) or (B, 1, T_k)
        buckets = relative_position_buckets(rows - columns, len(self.weight), self.max_distance, causal=self.causal)
        return self.weight[buckets].movedim(-1, -3)  # (..., T_q, T_k, H) -> (..., H, T_q, T_k)


POSITIONS: dict[str, type[PositionEncoding]] = {
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "rope": RotaryPositions,
    "alibi": AlibiPositions,
    "relative": RelativePositions,
    "none": NoPositions,
}


def refuse_beyond(positions: Positions, block_size: int) -> None:
    """Refuse positions >= block_size, which the model was not trained on.

    Checking a range is free, also in a compiled graph. A tensor is checked only on the CPU, as a GPU would have to be
    synchronized, and neither in a graph nor in `torch.vmap`, where its values are unknown.

    Raises:
        InputError: a position is too large.
    """
    if isinstance(positions, range):
        length = 0 if torch.compiler.is_exporting() else positions.stop  # any length may be exported
    elif positions.device.type != "cpu" or torch.compiler.is_compiling() or not positions.numel():
        return
    else:
        try:
            length = int(positions.max()) + 1
        except RuntimeError:  # within vmap
            return
    if length > block_size:
        raise InputError(
            f"{length} tokens are more than the model's block_size of {block_size}; "
            f"give it at most {block_size} tokens of a text"
        )


def _look_up(table: Tensor, positions: Positions) -> Tensor:
    if isinstance(positions, range):
        return table[positions.start : positions.stop]  # (T, D)
    return table[positions.clamp(min=0)]  # (B, T, D); padding borrows the first row, nobody attends to it


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _frequencies(width: int, base: float) -> Tensor:
    frequencies = [base ** (-i / width) for i in range(0, width, 2)]  # pow on "meta" imports a compiler
    return torch.tensor(frequencies, dtype=torch.float64)  # (width/2,)


def sinusoids(block_size: int, d_model: int, base: float = 10_000.0) -> Tensor:
    """(block_size, d_model), float64: column 2i is sin(t / base^(2i/D)), column 2i+1 the cosine of the same angle."""
    angles = torch.arange(block_size).unsqueeze(-1) * _frequencies(d_model, base)  # (T, D/2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # (T, D/2, 2) -> (T, D)


def alibi_slopes(n_heads: int) -> Tensor:
    """(H,), float64: a geometric series from 2^(-8/H); other head counts are filled up from the next power of two's."""
    power = 2 ** math.floor(math.log2(n_heads))
    series = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    extra = [2 ** (-4 * (2 * i + 1) / power) for i in range(n_heads - power)]
    return torch.tensor(series + extra, dtype=torch.float64)


def relative_position_buckets(back: Tensor, n_buckets: int, max_distance: int, *, causal: bool) -> Tensor:
    """The class of each distance, as T5 divides them: half of the classes for one distance each, the others ever wider.

    Args:
        back: how far each key stands behind its query; negative where it is ahead.
        n_buckets: how many classes; bidirectional attention uses half of them for later keys.
        max_distance: where the last class begins.
        causal: nobody looks ahead.

    Returns:
        int64 of the shape of `back`, from 0 to n_buckets - 1.
    """
    first = torch.zeros_like(back)
    if not causal:
        n_buckets //= 2
        first = (back < 0) * n_buckets
        back = back.abs()
    back = back.clamp(min=0)
    exact = n_buckets // 2
    share = (back.clamp(min=1) / exact).log() / math.log(max_distance / exact)  # of the way to the last class
    wide = (exact + (share * (n_buckets - exact)).long()).clamp(max=n_buckets - 1)
    return first + torch.where(back < exact, back, wide)
