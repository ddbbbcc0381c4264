"""The steps of one forward pass as a table, and what its attention scores cost."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any, Self

from clearhead.inspection.steps import page
from clearhead.inspection.steps.axes import LENGTHS, size_of, symbols_in
from clearhead.inspection.view import Row, View
from clearhead.wording import counted, in_bytes

LONG = 4096  # tokens, for which the cost is told as well
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "bool": 1}
FUSED = ("scaled_dot_product_attention", "multi_head_attention_forward")


@dataclass(frozen=True)
class TraceStep:
    """One operation of a forward pass, with one tensor that it returned.

    Args:
        module: path of the module whose `forward` called it; empty for the model itself.
        operation: torch's name for it.
        axes: of the tensor, by their symbols; a number where an axis has none.
        shape, dtype: the tensor's.
        bytes: memory that it takes; 0 for a view, which looks into the memory of another.
        parameters: numbers in the weights that the operation reads.
        file, line: of the code that called it; None where only torch's own did.
        score_axes, score_shape: of the attention scores that it computes; empty for other operations.
    """

    module: str
    operation: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    parameters: int
    file: str | None
    line: int | None
    score_axes: tuple[str, ...] = ()
    score_shape: tuple[int, ...] = ()

    @property
    def is_fused(self) -> bool:
        """Whether its scores are never held as a whole."""
        return self.operation in FUSED

    @property
    def has_scores(self) -> bool:
        """Whether it computes attention scores, T by T."""
        return sum(bool(symbols_in(axis) & set(LENGTHS)) for axis in self.score_axes) > 1

    def scores_at(self, sizes: Mapping[str, int]) -> int:
        """How many scores it computes with these sizes."""
        return prod(size_of(axis, sizes) for axis in self.score_axes)


@dataclass(frozen=True)
class ScoreCost:
    """What the attention scores of all heads and layers come to: their number, and their bytes if all were held."""

    T: int
    entries: int
    bytes: int


@dataclass(frozen=True)
class TraceTable(View):
    """Every step of one forward pass.

    Args:
        target: what was traced.
        steps: in the order in which they ran.
        sizes: what the symbols are in this pass: B, T, D and so on.
        parameters: of the whole model, each counted once.
        call: how the model was called.
    """

    target: str
    steps: tuple[TraceStep, ...]
    sizes: Mapping[str, int]
    parameters: int
    call: str = ""
    class_name: str = field(default="model")

    @property
    def title(self) -> str:
        return f"Steps of {self.target}"

    @property
    def verdict(self) -> str:
        counts = f"{counted(len(self.steps), 'step')}, {counted(self.parameters, 'parameter')}"
        return f"{counts}, {in_bytes(sum(step.bytes for step in self.steps))} written. {self.score_sentence}"

    @property
    def score_sentence(self) -> str:
        """What T x T costs, in one sentence."""
        steps = self.score_steps
        if not steps:
            return "No attention scores were seen."
        now, later = self.scores
        costs = f"{now.entries:,} entries, {in_bytes(now.bytes)}; at {later.T:,} tokens {later.entries:,} entries"
        rows = f" of {self.sizes['B']} rows" if self.sizes.get("B", 1) > 1 else ""
        fused = sum(step.is_fused for step in steps)
        held = "a fused kernel never holds them" if fused == len(steps) else "they are held in memory"
        if 0 < fused < len(steps):
            held = f"a fused kernel never holds those of {fused} of {len(steps)} attentions"
        kinds = " and ".join(dict.fromkeys(_lengths(step) for step in steps))
        return f"Attention scores over all heads and layers{rows} ({kinds}): {costs}, {in_bytes(later.bytes)}; {held}."

    @property
    def score_steps(self) -> tuple[TraceStep, ...]:
        """The steps that compute attention scores."""
        return tuple(step for step in self.steps if step.has_scores)

    @property
    def scores(self) -> tuple[ScoreCost, ScoreCost]:
        """Their cost at this length, and at `LONG` tokens of source and target."""
        return self._cost(self.sizes), self._cost({**self.sizes, **dict.fromkeys(LENGTHS, LONG)})

    def _cost(self, sizes: Mapping[str, int]) -> ScoreCost:
        counts = [(step.scores_at(sizes), ITEM_BYTES.get(step.dtype, 4)) for step in self.score_steps]
        return ScoreCost(sizes.get("T", 0), sum(n for n, _ in counts), sum(n * item for n, item in counts))

    def main(self) -> str:
        return page.body(self)

    @property
    def style(self) -> str:
        return page.STYLE

    def svg(self) -> str:
        return page.picture(self)

    def rows(self) -> Sequence[Row]:
        return [
            {
                "module": step.module,
                "operation": step.operation,
                "axes": ", ".join(step.axes),
                "shape": " x ".join(map(str, step.shape)),
                "dtype": step.dtype,
                "bytes": step.bytes,
                "parameters": step.parameters,
                "file": step.file,
                "line": step.line,
            }
            for step in self.steps
        ]

    def as_dict(self) -> dict[str, object]:
        now, later = self.scores
        return {
            "target": self.target,
            "class": self.class_name,
            "call": self.call,
            "sizes": dict(self.sizes),
            "parameters": self.parameters,
            "steps": [asdict(step) for step in self.steps],
            "scores": [asdict(now), asdict(later)],
            "fused": sum(step.is_fused for step in self.score_steps),
            "verdict": self.verdict,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """The table from what `as_dict` gave, also after JSON."""
        tuples = ("axes", "shape", "score_axes", "score_shape")
        steps = (TraceStep(**{**step, **{name: tuple(step[name]) for name in tuples}}) for step in document["steps"])
        return cls(
            document["target"],
            tuple(steps),
            document["sizes"],
            document["parameters"],
            document["call"],
            document["class"],
        )

    def named(self, target: str) -> Self:
        """The same under another name."""
        return replace(self, target=target)


def _lengths(step: TraceStep) -> str:
    """As 'T x T_src'."""
    return " x ".join(name for axis in step.score_axes for name in LENGTHS if name in symbols_in(axis))
