"""Quantization of weights to bfloat16 or int8; decoding one text then reads 1/2 or 1/4 of the bytes."""

import copy
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from clearhead.config import Dtype
from clearhead.models import CausalLM
from clearhead.models.eval_mode import evaluating

Model = TypeVar("Model", bound=CausalLM)
INT8_MAX = 127  # of an int8, so that the numbers are symmetric


class QuantizedMatrix(NamedTuple):
    """A matrix (N, K) in its narrow type and, for int8, the scale (N, 1) of each output."""

    numbers: Tensor
    scales: Tensor | None

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The matrix that they represent, in `dtype`."""
        wide = self.numbers.to(dtype)
        return wide if self.scales is None else wide * self.scales


def quantize(matrix: Tensor, dtype: Dtype) -> QuantizedMatrix:
    """Round to the nearest numbers of `dtype`; int8 has a scale per output, which makes its largest weight 127."""
    if dtype == "int8":
        scales = matrix.abs().amax(1, keepdim=True).clamp(min=torch.finfo(matrix.dtype).tiny) / INT8_MAX  # (N, 1)
        return QuantizedMatrix((matrix / scales).round().to(torch.int8), scales)
    return QuantizedMatrix(matrix.bfloat16() if dtype == "bfloat16" else matrix, None)


@torch.no_grad()
def quantize_model(model: Model, dtype: Dtype) -> Model:
    """A copy whose matrices are rounded to `dtype`; the model itself for 'float32'.

    Parameters keep their type, so the copy is an ordinary model, and rounding it again changes nothing.
    """
    if dtype == "float32":
        return model
    new = copy.deepcopy(model)
    for name in linear_weights(model):
        parameter = new.get_parameter(name)
        parameter.copy_(quantize(parameter, dtype).dequantize(parameter.dtype))
    return new


@torch.inference_mode()
def linear_weights(model: CausalLM) -> list[str]:
    """Names of the parameters that linear maps multiply by, in the order of use."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    with evaluating(model), _LinearRecorder() as recorder:
        model(torch.zeros(1, 1, dtype=torch.int64, device=model.device))
    return [names[key] for key in dict.fromkeys(recorder.weights) if key in names]


class _LinearRecorder(TorchFunctionMode):
    """Record the matrices of linear maps inside the `with`."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[int] = []

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if function is F.linear:
            self.weights.append(id(args[1]))
        return function(*args, **(kwargs or {}))
