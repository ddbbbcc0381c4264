"""Weights that processes share out, with torch's FSDP2 (`fully_shard`): each keeps its rows of every tensor.

A block's weights are whole while it computes. Those outside the blocks (embeddings, the head) are whole from the
forward pass to the end of the backward pass, and inside `gathered`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.overrides import TorchFunctionMode

from clearhead.allocator import give_back_freed
from clearhead.config import ModelConfig
from clearhead.models import LanguageModel, build_model, initial_values
from clearhead.parts import Block

if TYPE_CHECKING:  # loading either takes two seconds, which only a training that needs them waits for
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def build_sharded(config: ModelConfig, device: torch.device, *, seed: int = 0) -> LanguageModel:
    """`build_model`, weight for weight, of which this process holds its share: no process ever holds the whole.

    Nothing is sent, so processes need not call it at the same time.
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    if device.type == "cpu":
        give_back_freed()
    with Unfilled():
        model = build_model(config)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in (module for module in model.modules() if isinstance(module, Block)):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "body")  # what the loss calls, and `forward` as well
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            if p.is_meta:
                setattr(module, name, nn.Parameter(torch.empty_like(p, device=device)))
    with torch.no_grad():
        for p, value in initial_values(model, config, seed):
            fill(p, value)
    return model


class Unfilled(TorchFunctionMode):
    """What `torch.empty` makes is on the meta device: numbers that are still to be drawn take no memory."""

    # Passes on the arguments of any function of torch, hence `Any`.
    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **{**(kwargs or {}), **({"device": "meta"} if func is torch.empty else {})})


def is_sharded(model: nn.Module) -> bool:
    """Whether processes share the weights out."""
    return hasattr(model, "unshard")


def is_shared_out(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether processes share the tensor out, so that this one holds some of its rows."""
    return hasattr(tensor, "to_local")


def shard_of(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor; all of one that is not shared out."""
    return tensor.to_local() if is_shared_out(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor; where it is shared out, all processes call this."""
    return tensor.full_tensor() if is_shared_out(tensor) else tensor


def share_of(value: Tensor, tensor: Tensor) -> Tensor:
    """The part of a whole value, of the shape of `tensor`, that belongs to what this process holds of `tensor`."""
    if not is_shared_out(tensor):
        return value
    chunks = value.chunk(tensor.device_mesh.size())  # as `Shard(0)` cuts
    rank = tensor.device_mesh.get_local_rank()
    return chunks[rank] if rank < len(chunks) else value[:0]


def fill(tensor: Tensor, value: Tensor) -> None:
    """Copy a whole value into a tensor, of which each process takes its share."""
    shard_of(tensor).copy_(share_of(value, tensor))


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """What lies outside the blocks is whole in here, for calls of a part of the model; all processes enter together."""
    if not is_sharded(model):
        yield
        return
    root = cast("FSDPModule", model)
    root.unshard()
    try:
        yield
    finally:
        root.reshard()


@contextmanager
def unreduced(model: nn.Module) -> Iterator[None]:
    """Gradients of a sharded model stay, whole, with their process; the first backward pass outside reduces them."""
    root = cast("FSDPModule", model)
    root.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        root.set_requires_gradient_sync(True)
