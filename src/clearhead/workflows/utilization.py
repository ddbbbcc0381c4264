"""How well a training uses its devices: tokens per second of each, model FLOPs utilization, peak memory."""

import sys
from dataclasses import dataclass

import torch

from clearhead.config import RunConfig
from clearhead.inspection import flops_per_token
from clearhead.training import Processes, Stepped, resolve_precision
from clearhead.workflows.gpu_peaks import gpu_peak

FORWARD_AND_BACKWARD = 3  # times the operations of a forward pass


@dataclass(frozen=True)
class Utilization:
    """The devices of a training, and what one of them could do.

    Attributes:
        device: of this process.
        n_devices: one for each process.
        flops_per_token: of one training step, for each token that is computed, whether it counts in the loss or not.
        tokens_per_step: that are computed in a step; None where they are those that count.
        peak: operations per second that a device reaches at most, where it is a GPU that is known.
    """

    device: torch.device
    n_devices: int
    flops_per_token: int
    tokens_per_step: int | None
    peak: float | None

    @classmethod
    def of(cls, config: RunConfig, device: torch.device) -> "Utilization":
        """Of the training that this process takes part in."""
        precision = resolve_precision(config.train, device)
        peak = None
        if device.type == "cuda" and (precision != torch.float32 or not torch.backends.cuda.matmul.allow_tf32):
            peak = gpu_peak(torch.cuda.get_device_name(device), bfloat16=precision == torch.bfloat16)
        masked = config.train.batch_size * config.model.block_size if config.objective == "masked" else None
        per_token = FORWARD_AND_BACKWARD * flops_per_token(config.model)
        return cls(device, Processes.joined().world_size, per_token, masked, peak)

    def mfu(self, tokens: int, seconds: float, steps: int = 1) -> float | None:
        """The share of what the devices could compute that the model needed (Chowdhery et al. 2022, appendix B).

        What is computed again to save memory does not count. None where the peak is not known.
        """
        if self.peak is None or seconds <= 0:
            return None
        computed = tokens if self.tokens_per_step is None else steps * self.tokens_per_step
        return self.flops_per_token * computed / seconds / (self.n_devices * self.peak)

    def record(self, event: Stepped) -> dict[str, float | int | None]:
        """What metrics.jsonl has of a step beside its event."""
        figures: dict[str, float | int | None] = {"peak_memory": peak_memory(self.device)}
        if self.n_devices > 1 and event.seconds > 0:
            figures["tokens_per_second_per_device"] = round(event.tokens / event.seconds / self.n_devices, 1)
        if (mfu := self.mfu(event.tokens, event.seconds)) is not None:
            figures["mfu"] = round(mfu, 4)
        return figures

    def news(self, tokens: int, seconds: float, steps: int) -> str:
        """The same for a line on the console, after the tokens per second; empty where there is nothing to add."""
        per_device = f" ({tokens / seconds / self.n_devices:,.0f} per device)" if self.n_devices > 1 and seconds else ""
        mfu = self.mfu(tokens, seconds, steps)
        return per_device + ("" if mfu is None else f"  MFU {mfu:.1%}")


def peak_memory(device: torch.device) -> int | None:
    """The most bytes that this process has held: on a GPU of tensors, else its resident memory; None if not known."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest
