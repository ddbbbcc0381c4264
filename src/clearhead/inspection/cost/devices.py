"""A training that several devices share: what each of them holds and computes, on paper. No torch."""

import math
from dataclasses import dataclass

from clearhead.config import ModelConfig, TrainConfig
from clearhead.inspection.cost.architectures import ArchitectureCost
from clearhead.inspection.cost.memory import FLOAT32, activation_bytes, optimizer_numbers, sum_over_weights
from clearhead.reference.arrays import Shape
from clearhead.reference.shapes import weight_shapes
from clearhead.wording import counted, in_bytes

_UNITS = (86_400, "days"), (3600, "hours"), (60, "minutes")


@dataclass(frozen=True)
class SharedTraining:
    """A training on `devices` devices, each with its rows of the batch.

    `bytes` has what one device holds, the fullest of them where they differ: under `ddp`, which keeps the model whole
    on each, and under `fsdp`, which keeps a share of every weight, gradient and optimizer state, and gathers a block's
    weights while it computes. `flops_per_step` are those of all devices together. The seconds are known where the
    `rate` of a device is: the floating-point operations per second that it really does.
    """

    devices: int
    bytes: dict[str, dict[str, int]]
    flops_per_step: int
    steps: int
    rate: float | None = None

    @property
    def seconds_per_step(self) -> float | None:
        """The time that computing takes; what the devices send to each other is not counted."""
        return None if self.rate is None else self.flops_per_step / (self.devices * self.rate)

    def __str__(self) -> str:
        """As `clearhead describe --devices` prints it."""
        names = list(self.bytes)
        lines = [f"{f'on each of {self.devices:,} devices':<20} {'  '.join(f'{name.upper():>10}' for name in names)}"]
        for use in self.bytes[names[0]]:
            lines.append(f"{use:<20} {'  '.join(f'{in_bytes(self.bytes[name][use]):>10}' for name in names)}")
        flops = self.flops_per_step
        lines += ["", f"FLOPs per step       {flops:,} in all, {flops // self.devices:,} on each device"]
        if self.seconds_per_step is not None:
            whole = self.steps * self.seconds_per_step
            lines.append(
                f"time                 {_duration(self.seconds_per_step)} per step, {_duration(whole)} for "
                f"{counted(self.steps, 'step')}, without what the devices send to each other"
            )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """What `clearhead describe --devices --json` adds."""
        seconds = {} if self.rate is None else {"seconds_per_step": self.seconds_per_step, "rate": self.rate}
        return {"devices": self.devices, "per_device": self.bytes, "flops_per_step": self.flops_per_step, **seconds}


def share_training(
    costs: ArchitectureCost, model: ModelConfig, train: TrainConfig, devices: int, rate: float | None
) -> SharedTraining:
    """The costs of a training that so many devices share, each of which does `rate` operations per second."""

    def share(shape: Shape) -> Shape:
        """The first device's part of a weight, which is cut along its first axis into parts as large as that one."""
        return (-(-shape[0] // devices), *shape[1:])

    optimizer = optimizer_numbers(train)
    activations = activation_bytes(costs, model, train, devices)
    whole = FLOAT32 * sum(costs.parts.values())
    part = FLOAT32 * sum_over_weights(model, lambda name, shape: math.prod(share(shape)))
    bytes_of = {
        "ddp": (whole, whole, FLOAT32 * sum_over_weights(model, optimizer), 0),
        "fsdp": (
            part,
            part,
            FLOAT32 * sum_over_weights(model, lambda name, shape: optimizer(name, share(shape))),
            _gathered(model, whole if train.micro_batches > 1 else 0) if devices > 1 else 0,
        ),
    }
    names = ("weights", "gradients", "optimizer", "gathered", "activations", "training")
    head = 2 * model.d_model * (model.vocab_size + (model.d_model if model.head_transform else 0))
    again = 0 if train.recompute == "none" else costs.flops_per_token - head
    tokens = train.batch_size * model.block_size
    return SharedTraining(
        devices,
        {
            name: dict(zip(names, (*parts, activations, sum(parts) + activations), strict=True))
            for name, parts in bytes_of.items()
        },
        tokens * (3 * costs.flops_per_token + max(0, again)),
        train.steps,
        rate,
    )


def _gathered(model: ModelConfig, gradients: int) -> int:
    """What is whole on each device for a while under FSDP, in bytes.

    Outside the blocks, weights from the forward pass to the end of the backward pass, and their gradients at that end;
    of the blocks, the weights of the one that computes and of the next, and the gradient of the one that was computed.
    Over several micro-batches all `gradients` are whole, until they are reduced once.
    """
    largest: dict[str, int] = {"": 0}
    for name, shape in weight_shapes(model.model_copy(update={"n_layers": 1, "n_encoder_layers": 1})).items():
        stack = name.partition(".blocks.")[0] if ".blocks." in name else ""
        largest[stack] = largest.get(stack, 0) + math.prod(shape)
    outside, block = largest.pop(""), max(largest.values(), default=0)
    return FLOAT32 * (outside + 2 * block) + (gradients or FLOAT32 * (outside + block))


def _duration(seconds: float) -> str:
    for length, name in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {name}"
    return f"{seconds:,.3g} s"
