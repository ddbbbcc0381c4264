"""The dtype of the matrix products, by config and hardware."""

from contextlib import AbstractContextManager, nullcontext

import torch

from clearhead.config import TrainConfig


def has_bfloat16(device: torch.device) -> bool:
    """Whether the processor multiplies bfloat16 in hardware; emulated, it is slower than float32, not faster."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False


def resolve_precision(config: TrainConfig, device: torch.device) -> torch.dtype:
    """The type of the matrix products on this device; 'auto' takes bfloat16 where it is in the hardware."""
    chosen = config.precision == "bfloat16" or (config.precision == "auto" and has_bfloat16(device))
    return torch.bfloat16 if chosen else torch.float32


def autocast(device: torch.device, precision: torch.dtype) -> AbstractContextManager[object]:
    """Matrix products in `precision`; weights, norms, softmax and loss stay float32."""
    return nullcontext() if precision == torch.float32 else torch.autocast(device.type, precision)
