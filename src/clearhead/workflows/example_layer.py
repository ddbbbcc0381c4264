"""A decoder layer small enough to print: the twin's numbers and, where asked, those of our parts beside them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from clearhead import reference
from clearhead.config import ModelConfig
from clearhead.models import make_block
from clearhead.parts import attend
from clearhead.parts.masks import Mask
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
    with _watching(block) as (inputs, outputs):
        block(x, memory, mask="causal")

    intermediates: dict[str, Tensor] = {}
    masks: dict[str, Mask] = {"self_attention": "causal", "cross_attention": None}
    for sublayer, mask in masks.items():
        label, inside = sublayer.replace("_", "-"), f"{sublayer}.part"
        query, key, value = (_heads(outputs[f"{inside}.{name}"], example) for name in ("query", "key", "value"))
        one_each = torch.eye(key.shape[2], dtype=key.dtype).expand(*key.shape[:3], -1)  # (B, H, T_k, T_k)
        intermediates |= {f"{label} query": query, f"{label} key": key, f"{label} value": value}
        intermediates[f"{label} weights"] = attend(query, key, one_each, mask=mask)  # values that tell whose they are
        intermediates[f"{label} mixed"] = _heads(inputs[f"{inside}.output"], example)
        intermediates[label] = outputs[inside]
    intermediates |= {"ffn up": outputs["feedforward.part.up"], "ffn hidden": inputs["feedforward.part.down"]}
    intermediates["ffn"] = outputs["feedforward.part"]

    before = "x"
    for sublayer, after in reference.SUBLAYERS:
        written = {"feedforward": "ffn"}.get(sublayer, sublayer.replace("_", "-"))
        intermediates[f"norm({before})"] = outputs[f"{sublayer}.norm"]  # a step of the pre-norm layer
        intermediates[f"{before} + {written}"] = inputs[f"{sublayer}.norm"]  # a step of the post-norm layer
        intermediates[after] = outputs[sublayer]
        before = after
    return {name: numbers.numpy() for name, numbers in intermediates.items()}


def _heads(x: Tensor, example: reference.ExampleLayer) -> Tensor:
    B, T, _ = x.shape
    return x.view(B, T, example.config.n_heads, -1).transpose(1, 2)  # (B, T, H * K) -> (B, T, H, K) -> (B, H, T, K)


@contextmanager
def _watching(module: nn.Module) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Inside the `with`, what goes first into each of the module's parts and what comes out of it, by their names."""
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}

    def watch(name: str, part: nn.Module) -> RemovableHandle:
        def look(part: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            inputs[name], outputs[name] = args[0], output

        return part.register_forward_hook(look)

    handles = [watch(name, part) for name, part in module.named_modules()]
    try:
        yield inputs, outputs
    finally:
        for handle in handles:
            handle.remove()
