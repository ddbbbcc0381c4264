"""A decoder layer small enough to print: the twin's numbers and, where asked, those of our parts beside them."""

from dataclasses import dataclass

import numpy as np
import torch

from clearhead import reference
from clearhead.config import ModelConfig
from clearhead.inspection import record
from clearhead.models import make_block
from clearhead.options import has_arguments
from clearhead.reference import Array


@dataclass(frozen=True)
class Step:
    """One intermediate: its name, what it is made of, the names of its axes, and its numbers."""

    name: str
    equation: str
    axes: str
    values: Array
    torch: Array | None = None  # None as well for what exists only inside a fused kernel

    @property
    def difference(self) -> float | None:
        """The largest between a number of the twin and torch's."""
        return None if self.torch is None else float(np.abs(self.values - self.torch).max())

    def as_dict(self) -> dict[str, object]:
        """For JSON: `torch` and `difference` only where there are any."""
        record: dict[str, object] = {"name": self.name, "equation": self.equation, "axes": self.axes.split()}
        record |= {"shape": list(self.values.shape), "values": self.values.tolist()}
        return record if self.torch is None else record | {"torch": self.torch.tolist(), "difference": self.difference}


@dataclass(frozen=True)
class WorkedExample:
    """A decoder layer with everything that it computes, in order."""

    config: ModelConfig
    steps: list[Step]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"norm_position": self.config.norm_position, "intermediates": [step.as_dict() for step in self.steps]}


@has_arguments()
def worked_example(*, norm_position: str = "post", torch: bool = False) -> WorkedExample:
    """A decoder layer of the first Transformer on known numbers, in NumPy: see `reference.worked_example`.

    Args:
        norm_position: 'post' or 'pre'.
        torch: also what our parts make of the same numbers, in float64.

    Raises:
        UsageError: `norm_position` is neither.
    """
    example = reference.worked_example(norm_position)
    beside = through_our_parts(example) if torch else {}
    return WorkedExample(
        example.config,
        [Step(*intermediate, torch=beside.get(intermediate.name)) for intermediate in example.intermediates],
    )


@torch.no_grad()
def through_our_parts(example: reference.ExampleLayer) -> dict[str, Array]:
    """What our block computes from the same numbers, by the names of the twin's intermediates.

    Without the inputs, which are the same, and the scores, which the kernel that makes weights of them keeps.
    """
    block = make_block(example.config, cross=True).double().eval()
    block.load_state_dict({name: torch.tensor(array) for name, array in example.weights.items()})
    x, memory = (torch.tensor(intermediate.values) for intermediate in example.intermediates[:2])
    with record(block) as trace:
        block(x, memory, mask="causal")

    intermediates: dict[str, Array] = {}
    names = {"query": "q", "key": "k", "value": "v", "weights": "attention", "mixed": "mixed"}
    for sublayer in ("self_attention", "cross_attention"):
        label = sublayer.replace("_", "-")
        intermediates |= {f"{label} {name}": trace[f"{sublayer}.part.{step}"] for name, step in names.items()}
        intermediates[label] = trace[f"{sublayer}.part"]
    intermediates |= {"ffn up": trace["feedforward.part.up"], "ffn hidden": trace["feedforward.part.hidden"]}
    intermediates["ffn"] = trace["feedforward.part"]

    before, stream = "x", x.numpy()
    for sublayer, after in reference.SUBLAYERS:
        written = {"feedforward": "ffn"}.get(sublayer, sublayer.replace("_", "-"))
        intermediates[f"norm({before})"] = trace[f"{sublayer}.norm"]  # a step of the pre-norm layer
        intermediates[f"{before} + {written}"] = stream + trace[f"{sublayer}.part"]  # a step of the post-norm layer
        intermediates[after] = stream = trace[sublayer]
        before = after
    return intermediates
