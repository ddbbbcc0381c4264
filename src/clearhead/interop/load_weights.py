"""A model filled with the numbers of safetensors files, once names and shapes are known to fit."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from clearhead.config import ModelConfig
from clearhead.errors import DataError
from clearhead.interop.checks import check_tensors
from clearhead.interop.headers import CONFIG, Stored
from clearhead.interop.hf.family import Family
from clearhead.interop.hf.key_map import Link
from clearhead.interop.hf.weights import to_own
from clearhead.interop.memory import refuse_larger_than_memory
from clearhead.interop.tensor_files import read_tensor
from clearhead.models import LanguageModel, build_model


def filled_model(path: Path, stored: Mapping[str, Stored], family: Family | None, config: ModelConfig) -> LanguageModel:
    """The model of the config with the stored numbers, on the CPU, in evaluation mode.

    Every name, shape and type is checked before a weight is read or memory is taken for one.

    Args:
        path: the file or folder, for the sentences.
        stored: what is there, from `headers`.
        family: whose names they are; None: our own.
        config: what the model is.

    Raises:
        DataError: anything missing, left over, of the wrong shape or type, or damaged.
    """
    table, stored, constants, buffers, originals = check_tensors(path, stored, family, config)
    refuse_larger_than_memory(path, stored.values())
    types = {tensor.type for name, tensor in stored.items() if name not in buffers}

    def read(name: str) -> Tensor:
        return read_tensor(stored[name])

    try:
        for name, constant in constants.items():
            expected = constant.make(config).float()
            if not torch.allclose(read(name).float(), expected, rtol=0, atol=constant.tolerance):
                raise DataError(f"{path}: the numbers in {name} are not supported; {constant.description} are")
        for name, buffer in buffers.items():
            if not buffer.holds(config, read(name)):
                raise DataError(f"{path}: the numbers in {name} are not supported; {buffer.description} are")
        for name in originals.keys() & stored.keys():
            copy, original = read(name), originals[name]
            if not torch.equal(copy, read(original).to(copy.dtype)):
                raise DataError(f"{path}: {name} differs from {original}, but {CONFIG} says that they are tied")
        model = _blank(config).to(torch.float64 if "F64" in types else torch.float32)
        _fill(model, path, table, lambda name: read(name) if name in stored else None)
    except OSError as error:
        raise DataError(f"{path} cannot be read as safetensors: {error}") from None
    return model.eval()


def _fill(model: LanguageModel, path: Path, table: list[Link], read: Callable[[str], Tensor | None]) -> None:
    """Write every weight from its file; none is left as it was built, which no file would show.

    What a file may lack, for which there is nothing to read, is zero.
    """
    state = model.state_dict()
    left = set(state)
    for link in table:
        foreign = read(link.foreign)
        for name, tensor in to_own(link, torch.zeros(link.foreign_shape) if foreign is None else foreign).items():
            if name in state:
                state[name].copy_(tensor)
                left.discard(name)
            elif tensor.any():
                raise DataError(f"{path}: {link.foreign} is not zero, but the model has no {name}")
    assert not left, f"no file told of {', '.join(sorted(left))}"


def _blank(config: ModelConfig) -> LanguageModel:
    """The model without a number in it: every weight is NaN until one is written."""
    with _SkipInit():
        model = build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    return model


class _SkipInit(TorchFunctionMode):
    """Builds a model without drawing its first weights, which takes seconds for a large one: they are overwritten."""

    # Passes on the arguments of any function of torch, hence `Any`.
    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.randn, torch.rand):
            return torch.empty(*args)
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))
