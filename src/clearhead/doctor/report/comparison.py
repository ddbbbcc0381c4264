"""What a comparison of two models found, for a person and for a program. Imports no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from clearhead.doctor.report.findings import Where
from clearhead.doctor.report.page import show_comparison
from clearhead.doctor.report.records import Line, ReadableRecord, labelled

SHOWN = 6  # pairs of names
MATCHED_BY = {"name": "name", "suffix": "the end of the name", "value": "value", "role": "layer and role"}


@dataclass(frozen=True)
class Differing:
    """Two tensors or two outputs that correspond, by their names in A and B, and by how much they differ."""

    a: str
    b: str
    difference: float  # relative to the largest number there

    @property
    def names(self) -> str:
        """One name where both are the same."""
        return self.a if self.a == self.b else f"{self.a} = {self.b}"


@dataclass(frozen=True)
class Difference:
    """Where two models diverge: the first module that gets the same input and computes something else from it."""

    what: Literal["output", "gradient", "sharing"]  # that differs; sharing: which weights are one tensor
    path: str  # the code path, in words
    a: Where
    b: Where
    difference: float  # at the module, relative to the largest number there
    threshold: float = 0.0  # the smallest difference that counts
    noise_floor: float = 0.0  # what rounding to float32 does there
    agreed: str = ""  # the last module before it that computes the same in both
    growth: tuple[Differing, ...] = ()  # the differences on the way to the logits, which are the last

    @property
    def name(self) -> str:
        """The module of A."""
        return self.a.module or "the whole model"

    @property
    def sentence(self) -> str:
        """What differs."""
        if self.what == "sharing":
            return f"{self.path}, so they train differently"
        how = "computes something else from the same input" if self.what == "output" else "has another gradient"
        return f"{self.name} {how}"

    def lines(self) -> Iterator[Line]:
        """The difference as a comparison prints it."""
        is_sharing = self.what == "sharing"
        yield f"DIFFERENT  {self.name}  {'sharing of weights' if is_sharing else self.path}", "bold red"
        by = f", by {self.difference:.1e} of the largest number there; rounding does {self.noise_floor:.0e}"
        yield labelled("what", self.sentence + ("" if is_sharing else by)), ""
        yield labelled("in A", self.a.place or self.name), ""
        yield labelled("in B", self.b.place or self.name), ""
        if self.agreed:
            yield labelled("agreed", self.agreed), ""
        if self.growth:
            yield labelled("growth", ", ".join(f"{step.names} {step.difference:.1e}" for step in self.growth)), ""


@dataclass(frozen=True)
class Weights:
    """How the weights of A came into B."""

    # how many tensors, by how they were recognized: name, suffix (of the name), value, role, order
    matched: Mapping[str, int] = field(default_factory=dict)
    renamed: tuple[tuple[str, str], ...] = ()  # names that differ
    first_different: Differing | None = None  # before
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """How they were matched, and whether they were equal before."""
        by = ", ".join(f"{n} by {MATCHED_BY.get(kind, 'shape and order')}" for kind, n in self.matched.items())
        first = self.first_different
        if first is None:
            return f"{by}; equal before"
        return f"{by}; different before, the first is {first.names} by {first.difference:.1e}"


@dataclass(frozen=True, repr=False)
class Comparison(ReadableRecord):
    """Two models on the same ids with the same weights. It speaks of the paths that were run, and of nothing else."""

    computed = ("verdict", "summary")

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

    @property
    def verdict(self) -> Literal["equal", "different"]:
        """In a word."""
        return "equal" if self.equal else "different"

    @property
    def summary(self) -> str:
        verdict = f"differ: {self.first.sentence}" if self.first else "are equal on every path that was run"
        return f"{self.a} and {self.b} {verdict} ({round(self.seconds, 3):.2f} s)"

    def _repr_html_(self) -> str:
        return show_comparison(self)

    def _lines(self, verbose: bool) -> Iterator[Line]:
        yield self.summary, "bold red" if self.first else "green"
        yield from self.first.lines() if self.first else ()
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
