"""What a model costs, on paper: parameters by part, FLOPs per token, bytes to train and to generate. No torch."""

from dataclasses import dataclass

from clearhead.config import ModelConfig, TrainConfig
from clearhead.inspection.cost.architectures import COSTS
from clearhead.inspection.cost.devices import SharedTraining, share_training
from clearhead.inspection.cost.memory import FLOAT32, activation_bytes, optimizer_numbers, sum_over_weights
from clearhead.inspection.notebook import show_costs
from clearhead.pages import pretty
from clearhead.wording import in_bytes


@dataclass(frozen=True)
class CostEstimate:
    """The cost of one configuration.

    `parts` are parameters; their sum is the model's own. `flops_per_token` is one forward pass at full context, of an
    encoder-decoder per token of the target and with a source as long; training takes three times as many. `bytes` has
    what a training step holds (weights, gradients, optimizer, activations; their sum is training) and what generating
    one text of block_size tokens holds (weights and kv_cache; their sum is generation). `shared` is the same training
    on several devices, where their number was given.
    """

    parts: dict[str, int]
    flops_per_token: int
    bytes: dict[str, int]
    shared: SharedTraining | None = None

    @property
    def parameters(self) -> int:
        """Numbers that are learned, each counted once: a tied head is its embedding."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        """As `clearhead describe` prints it."""
        width = max(map(len, self.parts))
        shares = [
            f"{part:<{width}} {count:>14,}  {count / max(self.parameters, 1):6.1%}"
            for part, count in self.parts.items()
        ]
        forward = self.flops_per_token
        return "\n".join(
            (
                *shares,
                f"{'parameters':<{width}} {self.parameters:>14,}",
                "",
                f"FLOPs per token      {forward:,} forward, {3 * forward:,} to train",
                *(f"memory, {use:<12} {in_bytes(self.bytes[use])}" for use in ("training", "generation")),
                *(() if self.shared is None else ("", str(self.shared))),
            )
        )

    _repr_pretty_ = pretty

    def as_dict(self) -> dict[str, object]:
        """The account as plain data: what `clearhead describe --json` prints."""
        return {
            "parameters": self.parameters,
            "parts": self.parts,
            "flops_per_token": self.flops_per_token,
            "bytes": self.bytes,
            **({} if self.shared is None else self.shared.as_dict()),
        }

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return show_costs(self)


def estimate_cost(
    model: ModelConfig, train: TrainConfig | None = None, *, devices: int | None = None, rate: float | None = None
) -> CostEstimate:
    """The cost of `model`, trained as `train` says, generating one text at a time.

    Args:
        devices: that share the training, if that is to be known as well.
        rate: floating-point operations per second that one of them really does.
    """
    train = train or TrainConfig()
    costs = COSTS[model.architecture](model)
    weights = FLOAT32 * sum(costs.parts.values())
    optimizer = FLOAT32 * sum_over_weights(model, optimizer_numbers(train))
    activations = activation_bytes(costs, model, train)
    kv_cache = FLOAT32 * costs.cached_numbers * model.block_size
    return CostEstimate(
        parts=costs.parts,
        flops_per_token=costs.flops_per_token,
        bytes={
            "weights": weights,
            "gradients": weights,
            "optimizer": optimizer,
            "activations": activations,
            "training": 2 * weights + optimizer + activations,
            "kv_cache": kv_cache,
            "generation": weights + kv_cache,
        },
        shared=None if devices is None else share_training(costs, model, train, devices, rate),
    )


def parameters(model: ModelConfig) -> dict[str, int]:
    """Learned numbers by part. A part without any (sinusoidal positions, a tied head) is listed with 0."""
    return COSTS[model.architecture](model).parts


def flops_per_token(model: ModelConfig) -> int:
    """Floating-point operations of one forward pass at full context, per token."""
    return COSTS[model.architecture](model).flops_per_token
