"""One pass of a model, operation by operation, and what is read from it; each is computed once."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from clearhead.doctor.probes.attention import AttentionCall, attentions
from clearhead.doctor.probes.flow import Flow
from clearhead.doctor.probes.stream import Addition, residuals, stream
from clearhead.doctor.probes.tracing import ModuleCall


@dataclass(frozen=True)
class Inside:
    """Every operation of one pass over two rows without dropout, and its logits (2, T, V)."""

    calls: list[ModuleCall]
    logits: Tensor

    @cached_property
    def flow(self) -> Flow:
        """The operations, joined by their tensors."""
        return Flow(self.calls)

    @cached_property
    def attentions(self) -> list[AttentionCall]:
        """Every attention among them."""
        return list(attentions(self.calls, self.flow))

    @cached_property
    def residuals(self) -> dict[int, Tensor]:
        """What each addition of a branch adds it to, by the place of the operation."""
        return residuals(self.flow)

    @cached_property
    def stream(self) -> tuple[list[Addition], tuple[int, ...]]:
        """The additions on the way to the logits, and the operations behind the last of them, backwards."""
        return stream(self.flow, self.residuals, self.logits)

    @cached_property
    def streams(self) -> list[tuple[list[Addition], tuple[int, ...]]]:
        """That stream, and those of which only keys are made, as an encoder's beside a decoder."""
        streams = [self.stream]
        for key in (attention.key for attention in reversed(self.attentions)):
            steps, behind = ([], ()) if key is None else stream(self.flow, self.residuals, key)
            known = {step.index for others, _ in streams for step in others}
            if steps and known.isdisjoint(step.index for step in steps):  # else it is a branch of a known one
                streams.append((steps, behind))
        return streams
