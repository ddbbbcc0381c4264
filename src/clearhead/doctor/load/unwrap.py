"""What can be examined: wrappers are taken off, and a model that has no numbers to work with is refused."""

import re
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from clearhead.errors import DataError

QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "bitsandbytes", "torchao")


def unwrapped(model: object) -> nn.Module:
    """The model itself, without what only spreads or compiles it.

    Raises:
        DataError: it is none, or its weights cannot be copied and changed; one sentence.
    """
    if not isinstance(model, nn.Module):
        raise DataError(f"a torch.nn.Module can be examined, not a {type(model).__name__}")
    model = _unwrapped(model)
    name = type(model).__name__
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise DataError(f"{path} of {name} has no shape yet; call the model once before you give it away")
        if tensor.is_meta:
            raise DataError(f"{path} of {name} is on the meta device and has no numbers; initialize the model first")
    quantized = next(_quantised(model), None)
    if quantized:
        raise DataError(f"{quantized} of {name} is quantized; examine the model before it is, that is where faults are")
    return model


def remedy(message: str) -> str | None:
    """What to do about an error of a model's code, where its words tell."""
    if re.search("cuda|nvidia", message, re.I) and not torch.cuda.is_available():
        return "this machine has no CUDA: make and call the model on the CPU"
    if "DefaultCPUAllocator" in message:
        return "it needs more memory than there is: make the model smaller"
    return None


def _unwrapped(model: nn.Module) -> nn.Module:
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif isinstance(compiled := getattr(model, "_orig_mod", None), nn.Module):  # of torch.compile
            model = compiled
        else:
            return model


def _quantised(model: nn.Module) -> Iterator[str]:
    for path, module in model.named_modules():
        if type(module).__module__.startswith(QUANTISED):
            yield path or "the whole"
    for path, parameter in model.named_parameters():
        if parameter.is_quantized:
            yield path
