"""The dependency matrix: which token moves which logit, and the shapes that such a matrix takes."""

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
) -> tuple[Inputs, Inputs, Tensor]:
    """A batch of n + 1 equal rows, the same with token j of row j changed, and what it was changed to, (n,).

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
    others = candidates.gather(1, differs.long().argmax(1, keepdim=True))[:, 0]  # (n,)
    changed = base.tokens(source).clone()
    changed[torch.arange(n), torch.arange(n)] = others
    return base, base.with_tokens(source, changed), others


def dependency(
    run: Run, inputs: Inputs, pool: Tensor, generator: torch.Generator, *, source: bool = False
) -> DependencyMatrix:
    """Two forward passes of the same shape, compared number by number: on a CPU, equal inputs give equal bits.

    Args:
        inputs: one row, (1, T).
        pool: ids to draw from.
        source: compute the matrix from the source's tokens to the target's logits, (T, S).
    """
    base, changed, others = swapped_rows(inputs, pool, generator, source=source)
    n = len(others)
    with torch.no_grad():
        before, after = run(base), run(changed)  # (n + 1, T, V)
    change = (after - before).abs().amax(-1)  # (n + 1, T)
    scale = float(change[:n].max()) or float(before.std()) or 1.0
    again = float((before - before[:1]).abs().max())  # equal rows of one batch
    floor = max(again if again < 1e-4 * float(before.abs().max()) else 0.0, float(change[n].max())) / scale
    return DependencyMatrix((change[:n] / scale).t().contiguous(), floor, inputs.tokens(source)[0], others)


def shape_of(alive: Tensor) -> tuple[str, int]:
    """The name of a matrix (T, T), and its number where it has one.

    deaf, alone (only itself), causal, strict (not itself), window N, gaps (causal with holes), reversed (only the
    future), full, ahead N (N tokens of the future), prefix N, chunks N, band N (N tokens to both sides), mixed.
    """
    T = len(alive)
    i, j = torch.arange(T)[:, None], torch.arange(T)[None, :]
    if not alive.any():
        return "deaf", 0
    past, own, future = bool((alive & (j < i)).any()), bool(alive.diagonal().any()), bool((alive & (j > i)).any())
    if not past and not future:
        return "alone", 0
    if not future:
        return _shape_of_past(alive, i - j, own)
    if not past:
        return "reversed", 0
    if alive.all():
        return "full", 0
    for n in range(1, T):
        shapes = {"ahead": j <= i + n, "prefix": (j <= i) | (j < n + 1), "band": (i - j).abs() <= n}
        if n > 1:
            shapes["chunks"] = j // n <= i // n
        for name, shape in shapes.items():
            if torch.equal(alive, shape):
                return name, n + (name == "prefix")
    return "mixed", 0


def _shape_of_past(alive: Tensor, distance: Tensor, own: bool) -> tuple[str, int]:
    if torch.equal(alive, distance >= 0):
        return "causal", 0
    if not own:
        return "strict", 0
    for n in range(2, len(alive)):
        if torch.equal(alive, (distance >= 0) & (distance < n)):
            return "window", n
    return "gaps", 0
