"""A model small enough to train in a test, and data that is a pure function of the step."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clearhead.config import ModelConfig, TrainConfig
from clearhead.models import Evaluation, LanguageModel, build_model
from clearhead.training import Event, Optimizer, TrainingState, build_optimizer, fit
from clearhead.training.checkpoints import named_tensors

VOCAB, BLOCK = 11, 8


def tiny_model(*, seed: int = 0, **options: Any) -> LanguageModel:
    shape = {"vocab_size": VOCAB, "block_size": BLOCK, "n_layers": 2, "n_heads": 2, "d_model": 8, "dropout": 0.2}
    return build_model(ModelConfig.read(shape, options), seed=seed)


def tiny_config(**options: Any) -> TrainConfig:
    return TrainConfig.read(
        {"steps": 12, "batch_size": 4, "warmup_steps": 3, "learning_rate": 0.01, "eval_every": 4, "save_every": 5},
        {"precision": "float32", "compile": "off"},
        options,
    )


def tiny_batch(step: int) -> tuple[Tensor, Tensor]:
    """Ids that mostly count upwards, and the ids that follow them; a few targets are not counted."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(VOCAB, (4, 1), generator=generator)
    noise = torch.randint(2, (4, BLOCK + 1), generator=generator)
    ids = (start + torch.arange(BLOCK + 1) + noise) % VOCAB
    targets = ids[:, 1:].clone()
    targets[0, : step % BLOCK] = -100
    return ids[:, :-1], targets


def evaluator(model: LanguageModel) -> Callable[[], Evaluation]:
    def evaluate() -> Evaluation:
        inputs, targets = tiny_batch(10_000)
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        return Evaluation(float(loss), int((targets >= 0).sum()))

    return evaluate


def start(config: TrainConfig, **model_options: Any) -> tuple[LanguageModel, Optimizer, TrainingState]:
    model = tiny_model(**model_options)
    return model, build_optimizer(model, config), TrainingState()


def train(config: TrainConfig, **model_options: Any) -> tuple[LanguageModel, list[Event]]:
    model = tiny_model(**model_options)
    return model, list(fit(model, config, tiny_batch, seed=7, evaluate=evaluator(model)))


def assert_same_weights(model: LanguageModel, other: LanguageModel) -> None:
    expected = named_tensors(other)
    for name, tensor in named_tensors(model).items():
        assert torch.equal(tensor, expected[name]), f"{name} differs by {(tensor - expected[name]).abs().max():.3g}"
