"""Everything that a training run is given."""

from typing import Literal, Self

from pydantic import Field, model_validator

from clearhead.config.data import DataConfig
from clearhead.config.model import ModelConfig
from clearhead.config.training import TrainConfig
from clearhead.options import Options

# What a model learns -> the architectures that can.
OBJECTIVES: dict[str, tuple[str, ...]] = {
    "causal": ("decoder", "bigram"),
    "masked": ("encoder",),
    "seq2seq": ("encoder_decoder",),
}


class RunConfig(Options):
    """Everything that a training run was told: its clearhead.toml."""

    seed: int = Field(1, ge=0, lt=2**63, description="seed of the initial weights, the data order and dropout")
    objective: Literal["causal", "masked", "seq2seq"] = Field(
        "causal", description="what the model learns to predict: the next token, masked tokens, or a translation"
    )
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    train: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def _refuse_an_objective_that_the_model_cannot_learn(self) -> Self:
        able = OBJECTIVES[self.objective]
        if self.model.architecture not in able:
            raise ValueError(
                f"the objective '{self.objective}' needs the architecture {' or '.join(able)}, "
                f"not {self.model.architecture}"
            )
        return self
