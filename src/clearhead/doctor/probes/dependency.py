"""The dependency matrix: which token moves which logit, and the shapes that such a matrix takes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs, Run

THRESHOLD = 1e-5  # of the largest influence; over 130 architectures numbers stay below 5e-7, real influence above 1e-3
FLOORS = 20.0  # a change counts from this many times the noise floor


@dataclass(frozen=True)
class DependencyMatrix:
    """`influence` (T_out, T_in): how far a token moves the logits at a position, relative to the largest such move.

    `floor` is what equal inputs differ by, in the same unit; `alive` are the influences above the threshold.
    """

    influence: Tensor
    floor: float
    ids: Tensor  # (T,) the row that was changed
    others: Tensor  # (T,) what each token was changed to

    @property
    def threshold(self) -> float:
        """An influence above this is real."""
        return max(THRESHOLD, FLOORS * self.floor)

    @property
    def alive(self) -> Tensor:
        """(T_out, T_in) bool."""
        return self.influence > self.threshold

    def witness(self, pair: tuple[int, int]) -> str:
        """What changing token j does to logits i, in a sentence, for the pair (i, j)."""
        i, j = pair
        return (
            f"changing token {j} from {int(self.ids[j])} to {int(self.others[j])} moves logits {i} by "
            f"{float(self.influence[i, j]):.1e} of the largest move"
        )

    def picture(self, allowed: Tensor) -> tuple[str, ...]:
        """A line per output: '#' legal, '!' illegal, '-' missing, '.' nothing."""
        signs = {(True, True): "#", (True, False): "!", (False, True): "-", (False, False): "."}
        return tuple(
            "".join(signs[bool(a), bool(b)] for a, b in zip(alive, may, strict=True))
            for alive, may in zip(self.alive.tolist(), allowed.tolist(), strict=True)
        )


def swapped_rows(
    inputs: Inputs, pool: Tensor, generator: torch.Generator, *, source: bool = False
) -> tuple[Inputs, Inputs]:
    """A batch of n + 1 equal rows, and the same with token j of row j changed.

    Row n is not changed: if its logits move, they move for another reason.

    Args:
        inputs: one row.
        pool: ids to draw from.
        source: change the source's tokens instead of the target's.
    """
    row = inputs.tokens(source)
    n = row.shape[1]
    base = inputs.rows(torch.zeros(n + 1, dtype=torch.long))
    candidates = pool[torch.randint(len(pool), (n, 8), generator=generator)]  # (n, 8)
    differs = candidates != row[0, :, None]
    changed = base.tokens(source).clone()
    changed[torch.arange(n), torch.arange(n)] = candidates.gather(1, differs.long().argmax(1, keepdim=True))[:, 0]
    return base, base.with_tokens(source, changed)


def dependency(run: Run, base: Inputs, changed: Inputs, *, source: bool = False) -> DependencyMatrix:
    """Two forward passes of the same shape, compared number by number: on a CPU, equal inputs give equal bits.

    Args:
        base, changed: see `swapped_rows`.
        source: compute the matrix from the source's tokens to the target's logits, (T, S).
    """
    n = base.tokens(source).shape[1]
    with torch.no_grad():
        before, after = run(base), run(changed)  # (n + 1, T, V)
    change = (after - before).abs().amax(-1)  # (n + 1, T)
    scale = float(change[:n].max()) or float(before.std()) or 1.0
    again = float((before - before[:1]).abs().max())  # equal rows of one batch
    floor = max(again if again < 1e-4 * float(before.abs().max()) else 0.0, float(change[n].max())) / scale
    influence = (change[:n] / scale).t().contiguous()
    return DependencyMatrix(influence, floor, base.tokens(source)[0], changed.tokens(source).diagonal())


def shape_of(alive: Tensor) -> tuple[str, int]:
    """The name of a matrix (T, T), and its number where it has one.

    deaf, alone (only itself), causal, strict (not itself), window N, gaps (causal with holes), reversed (only the
    future), full, ahead N (N tokens of the future), prefix N, chunks N, band N (N tokens to both sides), blocks (of
    unequal length, each of which sees all of itself and of those before it), mixed.
    """
    T = len(alive)
    i, j = torch.arange(T)[:, None], torch.arange(T)[None, :]
    past, own, future = bool((alive & (j < i)).any()), bool(alive.diagonal().any()), bool((alive & (j > i)).any())
    if not past:
        return ("reversed" if future else "alone" if own else "deaf"), 0
    if not own and not future:
        return "strict", 0
    known = ((name, number) for name, number, shape in _shapes(i, j) if torch.equal(alive, shape))
    return next(known, ("blocks" if future and _is_in_blocks(alive) else "mixed" if future else "gaps", 0))


def _is_in_blocks(alive: Tensor) -> bool:
    """Whether each position sees the first n of them, and of those that it sees none sees more: no band does that."""
    ends = alive.sum(1)  # (T,)
    is_staircase = torch.equal(alive, torch.arange(len(alive)) < ends[:, None]) and bool((ends.diff() >= 0).all())
    return is_staircase and torch.equal(ends[ends - 1], ends) and len({*ends.tolist()}) > 2


def _shapes(i: Tensor, j: Tensor) -> Iterator[tuple[str, int, Tensor]]:
    """Names, numbers and matrices (T, T) of all shapes, for outputs i (T, 1) and inputs j (1, T)."""
    yield "causal", 0, j <= i
    yield "full", 0, j < len(i) + 0 * i
    for n in range(1, len(i)):
        yield "ahead", n, j <= i + n
        yield "prefix", n + 1, (j <= i) | (j < n + 1)
        yield "band", n, (i - j).abs() <= n
        if n > 1:
            yield "chunks", n, j // n <= i // n
            yield "window", n, (j <= i) & (i - j < n)
