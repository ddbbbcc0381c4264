"""Models that several processes train in tests: whole on each of them, or shared out; batches to train them on."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from training_helpers import BLOCK, VOCAB, tiny_batch, tiny_config

from clearhead.config import ModelConfig
from clearhead.models import LanguageModel, build_model
from clearhead.training import (
    Optimizer,
    Processes,
    Stepped,
    TrainingState,
    build_optimizer,
    build_sharded,
    checkpoints,
    fit,
)
from clearhead.training.checkpoints import named_tensors
from clearhead.training.loss import counted_tokens
from clearhead.training.sharding import whole
from clearhead.training.train_step import TrainStep

SHAPE = {"vocab_size": VOCAB, "block_size": BLOCK, "n_layers": 2, "n_heads": 2, "d_model": 8, "dropout": 0.0}
TRANSLATOR = {"architecture": "encoder_decoder", "n_encoder_layers": 2, "pad_id": 0, "tie_embeddings": False}


def process_model(parallel: str, options: dict[str, Any], *, seed: int = 0) -> LanguageModel:
    """A model whose weights processes share out if `parallel` is "fsdp" and there are several."""
    config = ModelConfig.read(SHAPE, options)
    if parallel == "fsdp" and Processes.joined().world_size > 1:
        return build_sharded(config, torch.device("cpu"), seed=seed)
    return build_model(config, seed=seed)


def batch_for(model: LanguageModel, step: int, rows: int = 4) -> tuple[Tensor, ...]:
    ids, targets = (tensor[:rows] for tensor in tiny_batch(step))
    if model.config.architecture != "encoder_decoder":
        return ids, targets
    source, start = ids.flip(1).clamp(min=1), ids.clamp(min=1)  # 0 is for padding, which ends a row
    source[0, BLOCK - step % BLOCK :] = 0
    return source, start, targets


def gathered_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every process calls this."""
    return {name: whole(tensor).clone() for name, tensor in named_tensors(model).items()}


def continued(
    model: LanguageModel,
    options: dict[str, Any],
    optimizer: Optimizer | None = None,
    state: TrainingState | None = None,
) -> dict[str, Tensor]:
    """The losses and the gradients' norms of every step, and the weights at the end."""
    config = tiny_config(**options)
    optimizer = optimizer or build_optimizer(model, config)
    events = fit(model, config, lambda step: batch_for(model, step), optimizer=optimizer, state=state)
    numbers = [(event.loss, event.gradient_norm) for event in events if isinstance(event, Stepped)]
    return {"steps": torch.tensor(numbers, dtype=torch.float64), **gathered_weights(model)}


def resumed(folder: Path, parallel: str, model_options: dict[str, Any], options: dict[str, Any]) -> dict[str, Tensor]:
    """`continued` from the newest checkpoint in the folder, or from the start; the last step is saved there."""
    model, config = process_model(parallel, model_options), tiny_config(**options)
    optimizer, newest = build_optimizer(model, config), checkpoints.newest(folder)
    state = TrainingState() if newest is None else checkpoints.load(newest.path, model, optimizer)
    result = continued(model, options, optimizer, state)
    checkpoints.save(folder, model, optimizer, state, keep=9)
    return result


def first_gradient(model: LanguageModel, options: dict[str, Any], rows: int) -> dict[str, Tensor]:
    """The gradient of a fresh model, gathered."""
    batch = batch_for(model, 3, rows)
    TrainStep(model, tiny_config(**options)).gradient(batch, tokens=counted_tokens(batch[-1]), seed=1, step=0)
    return {name: whole(p.grad).clone() for name, p in model.named_parameters() if p.grad is not None}
