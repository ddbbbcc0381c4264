"""What can be examined: wrappers are removed, and a model without numbers to work with is refused."""

import re
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from clearhead.errors import DataError
from clearhead.wording import with_article

QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "bitsandbytes", "torchao")


def unwrapped(model: object) -> nn.Module:
    """The model itself, without a wrapper that only distributes or compiles it.

    Raises:
        DataError: it is not a model, or its weights cannot be copied and changed.
    """
    if not isinstance(model, nn.Module):
        raise DataError(f"a torch.nn.Module can be examined, not {with_article(type(model).__name__)}")
    model = _unwrapped(model)
    name = type(model).__name__
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise DataError(f"{path} of {name} has no shape yet; call the model once before the examination")
        if tensor.is_meta:
            raise DataError(f"{path} of {name} is on the meta device and has no numbers; initialize the model first")
    quantized = next(_quantized(model), None)
    if quantized:
        raise DataError(f"{quantized} of {name} is quantized; examine the model before that")
    return model


def remedy(message: str) -> str | None:
    """What to do about an error of a model's code, if its message shows it."""
    if re.search("cuda|nvidia", message, re.I) and not torch.cuda.is_available():
        return "this machine has no CUDA: build and call the model on the CPU"
    if "DefaultCPUAllocator" in message:
        return "it needs more memory than there is: make the model smaller"
    return None


def _unwrapped(model: nn.Module) -> nn.Module:
    wrapped = getattr(model, "_orig_mod", None)  # by torch.compile
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        wrapped = model.module
    return _unwrapped(wrapped) if isinstance(wrapped, nn.Module) else model


def _quantized(model: nn.Module) -> Iterator[str]:
    for path, module in model.named_modules():
        if type(module).__module__.startswith(QUANTIZED):
            yield path or "the whole"
    for path, parameter in model.named_parameters():
        if parameter.is_quantized:
            yield path
