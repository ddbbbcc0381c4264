"""What a comparison of two models found, in the words and the numbers that a person and a program read.

Imports no torch.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal, Self

from clearhead.doctor.report.findings import Json, Where
from clearhead.doctor.report.text import Line, labelled
from clearhead.pages import printable


@dataclass(frozen=True)
class Differing:
    """Two tensors or two outputs that correspond, by their names in A and B, and by how much they differ.

    A difference is of the largest number there.
    """

    a: str
    b: str
    difference: float

    @property
    def names(self) -> str:
        """One name where both are the same."""
        return self.a if self.a == self.b else f"{self.a} = {self.b}"


@dataclass(frozen=True)
class Difference:
    """Where two models part: the first module that is given the same and makes something else of it.

    Args:
        what: what differs there: an output, a gradient, or which weights are one tensor.
        path: the code path, in words.
        a, b: the module in each.
        difference: at the module, of the largest number there.
        threshold: from where it counts.
        noise_floor: what rounding to float32 does there.
        agreed: the last module before it that makes the same in both.
        growth: the differences on the way to the logits, which are the last.
    """

    what: Literal["output", "gradient", "sharing"]
    path: str
    a: Where
    b: Where
    difference: float
    threshold: float
    noise_floor: float
    agreed: str
    growth: tuple[Differing, ...] = ()

    @property
    def sentence(self) -> str:
        """What differs, and how much."""
        if self.what == "sharing":
            return f"{self.path}, so they train differently"
        name = self.a.module or "the whole model"
        kind = "makes something else of the same input" if self.what == "output" else "has another gradient"
        return f"{name} {kind}"


@dataclass(frozen=True)
class Weights:
    """How the weights of A came into B.

    Args:
        matched: how many tensors, by how they were recognized: name, suffix (of the name), value, role, order.
        renamed: pairs of names that differ.
        first_different: the first that was not equal before.
        notes: what else is to be known.
    """

    matched: tuple[tuple[str, int], ...]
    renamed: tuple[tuple[str, str], ...] = ()
    first_different: Differing | None = None
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """How they were matched, and whether they were equal before."""
        how = {"name": "name", "suffix": "the end of the name", "value": "value", "role": "layer and role"}
        by = ", ".join(f"{n} by {how.get(kind, 'shape and order')}" for kind, n in self.matched)
        first = self.first_different
        equal = "equal before" if first is None else f"B's were others, first {first.names} by {first.difference:.1e}"
        return f"{by}; {equal}"


@dataclass(frozen=True)
class Comparison:
    """Two models on the same ids with the same weights. It speaks of the paths that were run, and of nothing else."""

    a: str
    b: str
    first: Difference | None
    weights: Weights
    paths: tuple[str, ...]
    seconds: float

    @property
    def equal(self) -> bool:
        """Whether nothing differs on any path."""
        return self.first is None

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Comparison: {self.summary}>"

    def text(self, *, verbose: bool = False) -> str:
        """The lines, without their styles."""
        return "\n".join(text for text, _ in self.lines(verbose=verbose))

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        verdict = f"differ: {self.first.sentence}" if self.first else "are equal on every path that was run"
        return f"{self.a} and {self.b} {verdict} ({round(self.seconds, 3):.2f} s)"  # as JSON has it

    def lines(self, *, verbose: bool = False) -> Iterator[Line]:
        """As a person reads it: the verdict, then the difference; verbose also tells what was matched and run."""
        for text, style in self._lines(verbose):
            yield printable(text), style

    def _lines(self, verbose: bool) -> Iterator[Line]:
        yield self.summary, "bold red" if self.first else "green"
        if self.first:
            yield from _difference(self.first)
        for note in self.weights.notes:
            yield labelled("note", note), ""
        if not verbose:
            return
        yield labelled("weights", self.weights.sentence), ""
        for a, b in self.weights.renamed[:SHOWN]:
            yield labelled("", f"{a} = {b}"), "dim"
        if len(self.weights.renamed) > SHOWN:
            yield labelled("", f"and {len(self.weights.renamed) - SHOWN} more"), "dim"
        yield labelled("paths", "; ".join(self.paths)), ""

    def as_json(self) -> Json:
        """Plain data, as docs/doctor.md has it."""
        first = self.first and asdict(self.first) | {"a": self.first.a.as_json(), "b": self.first.b.as_json()}
        weights = asdict(self.weights) | {"matched": dict(self.weights.matched)}
        return {
            "a": self.a,
            "b": self.b,
            "verdict": "equal" if self.equal else "different",
            "summary": self.summary,
            "first": first,
            "weights": weights,
            "paths": list(self.paths),
            "seconds": round(self.seconds, 3),
        }

    @classmethod
    def from_json(cls, document: Json) -> Self:
        """The reverse of `as_json`, after it went through text."""
        first, weights = document["first"], document["weights"]
        if first is not None:
            growth = tuple(Differing(**step) for step in first["growth"])
            first = first | {"a": Where.from_json(first["a"]), "b": Where.from_json(first["b"]), "growth": growth}
        differing = weights["first_different"]
        return cls(
            a=document["a"],
            b=document["b"],
            first=None if first is None else Difference(**first),
            weights=Weights(
                matched=tuple(weights["matched"].items()),
                renamed=tuple((a, b) for a, b in weights["renamed"]),
                first_different=None if differing is None else Differing(**differing),
                notes=tuple(weights["notes"]),
            ),
            paths=tuple(document["paths"]),
            seconds=document["seconds"],
        )


SHOWN = 6  # pairs of names


def _difference(first: Difference) -> Iterator[Line]:
    name = first.a.module or "the whole model"
    path = "sharing of weights" if first.what == "sharing" else first.path
    yield f"DIFFERENT  {name}  {path}", "bold red"
    by = f"{first.difference:.1e} of the largest number there; rounding does {first.noise_floor:.0e}"
    yield labelled("what", first.sentence + ("" if first.what == "sharing" else f", by {by}")), ""
    yield labelled("in A", first.a.place or name), ""
    yield labelled("in B", first.b.place or name), ""
    if first.agreed:
        yield labelled("agreed", first.agreed), ""
    if first.growth:
        steps = ", ".join(f"{step.names} {step.difference:.1e}" for step in first.growth)
        yield labelled("growth", steps), ""
