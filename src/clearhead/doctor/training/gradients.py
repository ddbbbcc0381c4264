"""What computes, clips and scales gradients."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

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
        self.scale_now = 1.0  # of the next backward's loss

    def backward(self, old: Callable[..., object], losses: object, *args: object, **kwargs: object) -> object:
        """`torch.autograd.backward`."""
        outside = self.forwards.in_backward
        event = None if outside else self._begin(losses)
        self.forwards.in_backward = True
        try:
            return old(losses, *args, **kwargs)
        finally:
            self.forwards.in_backward = outside
            if event is not None:
                self._end(event)

    @quietly
    def _begin(self, losses: Any) -> Backward | None:
        if self.event_log.is_full:
            return None
        tensors = [losses] if isinstance(losses, Tensor) else [loss for loss in losses if isinstance(loss, Tensor)]
        value = sum(float(loss.detach().double().sum()) for loss in tensors) / self.scale_now
        has_graph = any(loss.requires_grad for loss in tensors)
        pending, self.forwards.pending = self.forwards.pending, []
        event = Backward(value, has_graph, self.scale_now, pending, called("backward"), self.event_log.in_step)
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
        self.scale_now = 1.0
        for earlier in self.event_log.timeline:  # only the last batch is kept, to run it again
            if isinstance(earlier, Forward) and earlier not in event.forwards:
                earlier.args, earlier.kwargs = (), {}

    def clip(self, name: str, old: Callable[..., object], parameters: Any, *args: Any, **kwargs: Any) -> object:
        """A function of torch that clips to a limit, which stands first or has this name."""
        held = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        limit, *args_left = [kwargs.pop(name)] if name in kwargs else args
        self._note_clip(held, float(limit), by_norm=name == "max_norm")
        return old(held, limit, *args_left, **kwargs)

    @quietly
    def _note_clip(self, parameters: list[Tensor], limit: float, *, by_norm: bool) -> None:
        held = [parameter.grad.flatten() for parameter in parameters if parameter.grad is not None]
        sizes = torch.tensor([float(gradient.double().norm(2 if by_norm else math.inf)) for gradient in held])
        size = float(sizes.norm(2 if by_norm else math.inf)) if held else 0.0
        names = frozenset(id(parameter) for parameter in parameters)
        self.event_log.write(Clip(limit, names, len(held), size, by_norm, called("clip")))

    def scale(self, old: Callable[..., object], scaler: GradScaler, *args: object, **kwargs: object) -> object:
        """A method of a gradient scaler."""
        result = old(scaler, *args, **kwargs)
        if scaler.is_enabled():
            self._note_scale(old.__name__, scaler.get_scale())
        return result

    @quietly
    def _note_scale(self, method: str, scale: float) -> None:
        if method == "scale":
            self.scale_now = scale
        self.event_log.write(Scaled(method, scale, called("step")))
