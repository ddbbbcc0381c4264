"""What a training step holds in memory, on paper. No torch."""

import math
from collections.abc import Callable

from clearhead.config import ModelConfig, TrainConfig
from clearhead.inspection.cost.architectures import COSTS, ArchitectureCost
from clearhead.reference.arrays import Shape
from clearhead.reference.shapes import weight_shapes

Numbers = Callable[[str, Shape], int]  # of a weight's name and shape

# Numbers that an optimizer keeps for a parameter of this name and shape; others keep two for each of its numbers.
OPTIMIZER_STATES: dict[str, Numbers] = {
    "muon": lambda name, shape: math.prod(shape) * (1 if ".blocks." in name and len(shape) == 2 else 2),
    "sgd": lambda name, shape: math.prod(shape),
    "adagrad": lambda name, shape: math.prod(shape),
    "asgd": lambda name, shape: math.prod(shape),
    "adafactor": lambda name, shape: sum(shape),  # of a matrix, the means of its rows and of its columns
}
FLOAT32 = 4  # bytes; weights, gradients and optimizer state are kept in float32


def sum_over_weights(model: ModelConfig, numbers: Numbers) -> int:
    """The sum of `numbers(name, shape)` over all weights.

    One block of each stack is counted and multiplied: a config may ask for more blocks than can be listed.
    """

    def of(n_layers: int, n_encoder_layers: int) -> int:
        shallow = model.model_copy(update={"n_layers": n_layers, "n_encoder_layers": n_encoder_layers})
        return sum(numbers(name, shape) for name, shape in weight_shapes(shallow).items())

    least = of(1, 1)
    in_blocks = (model.n_layers - 1) * (of(2, 1) - least)
    return least + in_blocks + (model.n_encoder_layers - 1) * (of(1, 2) - least)


def optimizer_numbers(train: TrainConfig) -> Numbers:
    """How many numbers the optimizer keeps for a weight."""
    return OPTIMIZER_STATES.get(train.optimizer.lower(), _two_moments)


def _two_moments(name: str, shape: Shape) -> int:
    return 2 * math.prod(shape)


def activation_bytes(costs: ArchitectureCost, model: ModelConfig, train: TrainConfig, devices: int = 1) -> int:
    """What the forward pass keeps for the backward pass, for one part of a device's rows of a batch: an estimate.

    Where blocks are computed again, that is the input of every block, and all that one of them keeps.
    """
    rows = -(-train.batch_size // devices)
    tokens = -(-rows // train.micro_batches) * model.block_size
    number = 2 if train.precision == "bfloat16" else FLOAT32
    logits = 2 * model.vocab_size  # their log-probabilities and their gradient, in float32 whatever the precision
    kept = costs.kept_numbers
    if train.recompute == "blocks":
        one_block = COSTS[model.architecture](model.model_copy(update={"n_layers": 1, "n_encoder_layers": 1}))
        n_blocks = model.n_layers + (model.n_encoder_layers if model.architecture == "encoder_decoder" else 0)
        kept = min(kept, one_block.kept_numbers + n_blocks * model.d_model)
    return tokens * (number * kept + FLOAT32 * logits)
