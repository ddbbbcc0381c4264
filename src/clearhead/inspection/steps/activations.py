"""Which steps of a forward pass hold an activation that `record` knows by name."""

from collections.abc import Mapping, Sequence

from torch import nn

from clearhead.inspection.capture.sites import attention_sites, called_modules, feedforward_sites, path
from clearhead.inspection.steps.table import TraceStep

Shapes = Mapping[str, tuple[int, ...]]  # of the activations, by name
BEFORE_OUTPUT = 3  # steps from an attention's mixed values to its output: transpose, flatten, linear


def activations_of_steps(model: nn.Module, steps: Sequence[TraceStep], shapes: Shapes) -> list[str | None]:
    """The name of each step's tensor in a trace of the same pass, None where the trace does not have it.

    Args:
        steps: of `trace_model`, without interventions.
        shapes: of what `record` kept.
    """
    finder = _Finder(steps)
    names: dict[int, str] = {}
    for name, _ in called_modules(model):
        if name:
            names[finder.last(name)] = name
    for feedforward in feedforward_sites(model):
        names[finder.before(path(feedforward.name, "down"), feedforward.name)] = path(feedforward.name, "hidden")
    for site in attention_sites(model):
        before_key, before_value = (finder.before(path(site.name, part), site.name) for part in ("key", "value"))
        value = finder.after(path(site.name, "value"), site.name, "transpose")
        mixed = finder.within(finder.first(path(site.name, "output")) - BEFORE_OUTPUT, site.name)
        for step, index in (("q", before_key), ("k", before_value), ("v", value), ("mixed", mixed)):
            names[index] = path(site.name, step)
    chosen = [names.get(index, "") for index in range(len(steps))]
    return [name if shapes.get(name) == step.shape else None for name, step in zip(chosen, steps, strict=True)]


class _Finder:
    """Where modules are among the steps of their last call; -1 for nowhere."""

    def __init__(self, steps: Sequence[TraceStep]) -> None:
        self.steps = steps
        self.ranges: dict[str, tuple[int, int]] = {}  # of a module and all in it: its first step and its last
        for index, step in enumerate(steps):
            parts = step.module.split(".")
            for depth in range(1, len(parts) + 1):
                name = ".".join(parts[:depth])
                first, last = self.ranges.get(name, (index, index))
                self.ranges[name] = (first, index) if last >= index - 1 else (index, index)

    def first(self, name: str) -> int:
        return self.ranges.get(name, (-1, -1))[0]

    def last(self, name: str) -> int:
        """The step that ends a module, if it is the module's own."""
        return self.within(self.ranges.get(name, (-1, -1))[1], name)

    def before(self, name: str, owner: str) -> int:
        """The step before a module's first, if it is its owner's own."""
        return self.within(self.first(name) - 1, owner)

    def after(self, name: str, owner: str, operation: str) -> int:
        """The owner's next step of this operation after a module."""
        start = self.ranges.get(name, (len(self.steps), len(self.steps)))[1] + 1
        following = (index for index in range(start, len(self.steps)) if self.steps[index].operation == operation)
        return self.within(next(following, -1), owner)

    def within(self, index: int, owner: str) -> int:
        return index if 0 <= index < len(self.steps) and self.steps[index].module == owner else -1
