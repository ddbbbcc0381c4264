"""Outermost calls of modules: their modes, their tokens, and the gradients that a loss sends into their outputs."""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from clearhead.doctor.calling.outputs import leaves, tensors
from clearhead.doctor.training.event_log import EventLog, quietly
from clearhead.doctor.training.events import Embedded, Forward, ForwardOutput, called
from clearhead.doctor.training.readings import sample

OUTPUTS = 8  # at most so many tensors of an output whose gradients are kept,
EMBEDDED = 8  # calls of embeddings in one forward,
BATCH = 12  # tensors of a batch that are compared with the next one's,
PENDING = 64  # and forwards that wait for a backward


class Forwards:
    """Listens to modules."""

    def __init__(self, event_log: EventLog, before: Callable[[bool], None]) -> None:
        """`before` is called before every outermost forward of a module with parameters: does it compute gradients?"""
        self.event_log = event_log
        self.before = before
        self.in_backward = False  # a module that runs then is recomputed, for its gradient
        self.calls: list[nn.Module] = []  # that have not returned
        self.forward: Forward | None = None
        self.versions: list[int] = []  # of the inputs, before they could be changed in place
        self.pending: list[Forward] = []  # since the last backward

    @quietly
    def begin(self, module: nn.Module, args: tuple[object, ...]) -> None:
        """A module is called."""
        if self.in_backward:
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
            self._note_embedded(module, args[0])

    def _note_embedded(self, module: nn.Embedding, ids: object) -> None:
        assert self.forward is not None
        if isinstance(ids, Tensor) and ids.dim() == 2 and len(self.forward.embedded) < EMBEDDED:
            embedded = Embedded(module, ids.detach().clone(), module.num_embeddings, module.padding_idx)
            self.forward.embedded.append(embedded)

    @quietly
    def end(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """A module returned, or raised."""
        if self.in_backward or not self.calls:
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
