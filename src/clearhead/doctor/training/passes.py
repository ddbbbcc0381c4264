"""Forward and backward: what outermost calls of modules read and return, and the gradients that losses send back."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.dropout import _DropoutNd

from clearhead.doctor.calling.outputs import leaves, tensors
from clearhead.doctor.training.events import Backward, Clip, Embedded, EventLog, Forward, ForwardOutput, Scaled, called
from clearhead.doctor.training.gradient_log import sample
from clearhead.doctor.training.logits import xray_of

OUTPUTS = 8  # at most so many tensors of an output whose gradients are kept,
EMBEDDED = 8  # calls of embeddings in one forward,
BATCH = 12  # tensors of a batch that are compared with the next one's,
PENDING = 64  # forwards that wait for a backward,
XRAYS = 4  # and X-rays that keep their logits


class Passes:
    """Listens to modules, to backward, to clipping and to gradient scalers."""

    def __init__(self, event_log: EventLog, before: Callable[[bool], None]) -> None:
        """`before` is called before every outermost forward of a module with parameters: does it compute gradients?"""
        self.event_log = event_log
        self.before = before
        self.calls: list[nn.Module] = []  # that have not returned
        self.forward: Forward | None = None
        self.versions: list[int] = []  # of the inputs, before they could be changed in place
        self.pending: list[Forward] = []  # since the last backward
        self.backwards: list[Backward | None] = []  # that have not returned, of which only the first is written down
        self.n_xrays = 0
        self.scale = 1.0  # of the next backward's loss

    def begin_forward(self, module: nn.Module, args: tuple[object, ...]) -> None:
        """A module is called. One that runs inside of a backward is recomputed, for its gradient."""
        if self.backwards:
            return
        self.calls.append(module)
        if len(self.calls) == 1 and next(module.parameters(), None) is not None and not self.event_log.is_full:
            with_gradient = self.event_log.with_gradient
            self.before(with_gradient)
            self.event_log.gradients.open(module.parameters())
            self.forward = Forward(module, module.training, with_gradient, called("forward"), args)
            self.forward.dropouts = _dropouts(module)
            self.versions = _versions(args)
        if self.forward is not None and isinstance(module, nn.Embedding) and args:
            ids = args[0]
            if isinstance(ids, Tensor) and ids.dim() == 2 and len(self.forward.embedded) < EMBEDDED:
                embedded = Embedded(module, ids.detach().clone(), module.num_embeddings, module.padding_idx)
                self.forward.embedded.append(embedded)

    def end_forward(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """A module returned, or raised."""
        if self.backwards or not self.calls:
            return
        self.calls.pop()
        if self.calls or self.forward is None:
            return
        forward, self.forward = self.forward, None
        if len(rest) < 2:
            return  # it raised
        kwargs, output = rest
        forward.kwargs = kwargs
        forward.changed_inputs = self.versions != _versions(args)
        for path, leaf in leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad and len(forward.outputs) < OUTPUTS:
                record = ForwardOutput(path, leaf.detach(), leaf._version)
                forward.outputs.append(record)
                leaf.register_hook(functools.partial(_collect, record))  # type: ignore[no-untyped-call]
        self.event_log.write(forward)
        if forward.with_gradient:
            forward.batch = tuple(sample(tensor) for tensor in [*tensors(args), *tensors(kwargs)][:BATCH])
            self.pending = [*self.pending, forward][-PENDING:]

    def begin_backward(self, tensors: Any, *_: object, **__: object) -> None:
        """`torch.autograd.backward` is called."""
        self.backwards.append(None)
        if len(self.backwards) > 1 or self.event_log.is_full:
            return
        losses = [loss for loss in ([tensors] if isinstance(tensors, Tensor) else tensors) if isinstance(loss, Tensor)]
        value = sum(float(loss.detach().double().sum()) for loss in losses) / self.scale
        has_graph = any(loss.requires_grad for loss in losses)
        pending, self.pending = self.pending, []
        event = Backward(value, has_graph, self.scale, pending, called("backward"), self.event_log.in_step)
        self.backwards = [event]
        self.event_log.write(event)
        event.cleared = self.event_log.gradients.begin_backward()

    def end_backward(self, *_: object, **__: object) -> None:
        """It returned, or raised."""
        event = self.backwards.pop()
        if event is None:
            return
        event.reached = self.event_log.gradients.end_backward()
        for forward in event.forwards:
            xray = xray_of(forward, event.scale)
            if xray is not None:
                self.n_xrays += 1
                event.xrays.append(xray if self.n_xrays <= XRAYS else xray.without_logits())
            for output in forward.outputs:
                output.gradient, output.tensor = None, output.tensor.new_empty(0)
        self.scale = 1.0
        for earlier in self.event_log.timeline:  # only the last batch is kept, to run it again
            if isinstance(earlier, Forward) and earlier not in event.forwards:
                earlier.args, earlier.kwargs = (), {}

    def clip(self, limit: str, parameters: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A function of torch that clips to a limit, which comes second or has this name."""
        held = [parameters] if isinstance(parameters, Tensor) else list(parameters)  # once: they may be a generator
        self.event_log.quiet(self._write_clip)(held, kwargs[limit] if limit in kwargs else args[0], limit == "max_norm")
        return (held, *args), kwargs

    def _write_clip(self, parameters: list[Tensor], limit: float, by_norm: bool) -> None:
        order = 2 if by_norm else math.inf
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        sizes = torch.tensor([float(gradient.double().norm(order)) for gradient in gradients])
        size = float(sizes.norm(order)) if gradients else 0.0
        self.event_log.write(Clip(float(limit), frozenset(parameters), len(gradients), size, by_norm, called("clip")))

    def scaled(self, method: str, scaler: GradScaler, *_: object, **__: object) -> None:
        """A method of a gradient scaler was called."""
        if scaler.is_enabled():
            scale = scaler.get_scale()
            self.scale = scale if method == "scale" else self.scale
            self.event_log.write(Scaled(method, scale, called("step")))


def _dropouts(model: nn.Module) -> dict[str, bool]:
    """Whether each of them drops at this moment."""
    dropouts = {}
    for name, module in model.named_modules():
        p = getattr(module, "p" if isinstance(module, _DropoutNd) else "dropout", None)
        if isinstance(module, (_DropoutNd, nn.MultiheadAttention)) and isinstance(p, float) and p > 0:
            dropouts[name] = module.training
    return dropouts


def _versions(args: tuple[object, ...]) -> list[int]:
    return [tensor._version for tensor in tensors(args) if not tensor.is_inference()]


def _collect(output: ForwardOutput, gradient: Tensor) -> None:
    held = gradient.detach()
    output.is_used = True
    output.gradient = held if output.gradient is None else output.gradient + held
