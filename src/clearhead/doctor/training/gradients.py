"""What computes, clips and scales gradients."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from clearhead.doctor.training.event_log import EventLog, quietly
from clearhead.doctor.training.events import Backward, Clip, Forward, Scaled, called
from clearhead.doctor.training.forwards import Forwards
from clearhead.doctor.training.logits import xray_of

KEPT = 4  # X-rays that keep their logits


class Gradients:
    """Listens to backward, to clipping and to gradient scalers."""

    def __init__(self, event_log: EventLog, forwards: Forwards) -> None:
        self.event_log = event_log
        self.forwards = forwards
        self.kept = 0  # X-rays with their logits
        self.scale = 1.0  # of the next backward's loss

    @contextmanager
    def backward(self, losses: object) -> Iterator[None]:
        """Around a backward."""
        outside = self.forwards.in_backward
        event = None if outside else self._begin(losses)
        self.forwards.in_backward = True
        try:
            yield
        finally:
            self.forwards.in_backward = outside
            if event is not None:
                self._end(event)

    @quietly
    def _begin(self, losses: Any) -> Backward | None:
        if self.event_log.is_full:
            return None
        tensors = [losses] if isinstance(losses, Tensor) else [loss for loss in losses if isinstance(loss, Tensor)]
        value = sum(float(loss.detach().double().sum()) for loss in tensors) / self.scale
        has_graph = any(loss.requires_grad for loss in tensors)
        pending, self.forwards.pending = self.forwards.pending, []
        event = Backward(value, has_graph, self.scale, pending, called("backward"), self.event_log.in_step)
        self.event_log.write(event)
        event.cleared = self.event_log.gradients.begin_backward()
        return event

    @quietly
    def _end(self, event: Backward) -> None:
        event.reached = self.event_log.gradients.end_backward()
        for forward in event.forwards:
            question = xray_of(forward, event.scale)
            if question is not None:
                self.kept += 1
                event.xrays.append(question if self.kept <= KEPT else question.without_logits())
            for output in forward.outputs:
                output.gradient, output.tensor = None, output.tensor.new_empty(0)
        self.scale = 1.0
        for earlier in self.event_log.timeline:  # only the last batch is kept, to run it again
            if isinstance(earlier, Forward) and earlier not in event.forwards:
                earlier.args, earlier.kwargs = (), {}

    @quietly
    def clip(self, parameters: list[Tensor], limit: float, *, by_norm: bool) -> None:
        """Before gradients are clipped."""
        held = [parameter.grad for parameter in parameters if parameter.grad is not None]
        names = frozenset(id(parameter) for parameter in parameters)
        length = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in held))
        largest = max((float(gradient.abs().max()) for gradient in held if gradient.numel()), default=0.0)
        self.event_log.write(Clip(limit, names, len(held), length if by_norm else largest, by_norm, called("clip")))

    @quietly
    def scaled(self, method: str, scale: float, *, stepped: bool = True) -> None:
        """After a call of a gradient scaler."""
        if method == "scale":
            self.scale = scale
        self.event_log.write(Scaled(method, scale, called("step"), stepped))
