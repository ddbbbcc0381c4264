"""The other attention of a model that has two: transformers can run most of its models eager or fused."""

from collections.abc import Callable

import torch

from clearhead.doctor.calling.inputs import Inputs, Run
from clearhead.doctor.subject import Subject


def backends(subject: Subject) -> tuple[str, str] | None:
    """The one that is in use and the one that is not; None where there is no choice."""
    config = getattr(subject.model, "config", None)
    current = getattr(config, "_attn_implementation", None)
    if current not in ("eager", "sdpa") or not hasattr(subject.model, "set_attn_implementation"):
        return None
    return current, "eager" if current == "sdpa" else "sdpa"


def with_attention(subject: Subject, other: str, current: str) -> Run:
    """A run by the other one; the choice is taken back afterwards."""

    def run(inputs: Inputs) -> torch.Tensor:
        choose: Callable[[str], None] = subject.model.set_attn_implementation  # type: ignore[assignment]
        choose(other)
        try:
            return subject.run(inputs)
        finally:
            choose(current)

    return run
